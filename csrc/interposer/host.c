/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "host.h"

#include "driver.h"
#include "real.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Pinning costs more than copying (11 s for 16 GiB by cuMemHostAlloc; 0.8 s by touching huge pages with several threads
 * and registering them, on an NVIDIA H200's host), so some pieces are kept for the next move. The rest goes back: the
 * host's memory is promised to all groups together.
 */
static const uint64_t kept_limit = UINT64_C(2) << 30;
enum { HUGE_PAGE = 2 << 20, TOUCH_THREADS = 16, TOUCH_ALONE = 32 << 20 };

struct gs_host_piece {
    void *address;
    size_t bytes;
    struct gs_host_piece *next; /* among the kept */
};

static struct {
    pthread_mutex_t lock;
    struct gs_host_piece *kept;
    uint64_t kept_bytes, bytes;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct touched_range {
    char *start;
    size_t bytes;
};

static void *touch(void *argument)
{
    const struct touched_range *range = argument;
    for (size_t offset = 0; offset < range->bytes; offset += 4096)
        *(volatile char *)(range->start + offset) = 0;
    return NULL;
}

/* Makes the kernel find the pages, by several threads where there are many. */
static void touch_all(char *start, size_t bytes)
{
    struct touched_range ranges[TOUCH_THREADS];
    pthread_t threads[TOUCH_THREADS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned parts = bytes <= TOUCH_ALONE || processors < 4 ? 1
                     : processors < TOUCH_THREADS           ? (unsigned)processors
                                                            : TOUCH_THREADS;
    size_t part = (bytes / parts + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    unsigned started = 0;
    for (size_t offset = 0; offset < bytes; offset += part) {
        struct touched_range range = {start + offset, bytes - offset < part ? bytes - offset : part};
        bool last = offset + part >= bytes;
        ranges[started] = range;
        if (last || pthread_create(&threads[started], NULL, touch, &ranges[started]) != 0)
            touch(&range);
        else
            started++;
    }
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

static void unmap(struct gs_host_piece *piece)
{
    /* The registration may be gone with its context already. */
    GS_REAL(cuMemHostUnregister)(piece->address);
    munmap(piece->address, piece->bytes);
    __atomic_sub_fetch(&host.bytes, piece->bytes, __ATOMIC_RELAXED);
    free(piece);
}

static struct gs_host_piece *take_kept(size_t bytes)
{
    pthread_mutex_lock(&host.lock);
    struct gs_host_piece **link = &host.kept;
    while (*link != NULL && (*link)->bytes != bytes)
        link = &(*link)->next;
    struct gs_host_piece *piece = *link;
    if (piece != NULL) {
        *link = piece->next;
        host.kept_bytes -= bytes;
    }
    pthread_mutex_unlock(&host.lock);
    return piece;
}

struct gs_host_piece *gs_host_take(size_t bytes)
{
    struct gs_host_piece *piece = take_kept(bytes);
    if (piece != NULL)
        return piece;
    piece = calloc(1, sizeof(*piece));
    if (piece == NULL)
        return NULL;
    piece->bytes = bytes;
    piece->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece->address == MAP_FAILED) {
        free(piece);
        return NULL;
    }
    madvise(piece->address, bytes, MADV_HUGEPAGE);
    /* Recent kernels copy pinned pages at fork; a DataLoader's workers would copy all of it. */
    madvise(piece->address, bytes, MADV_DONTFORK);
    touch_all(piece->address, bytes);
    __atomic_add_fetch(&host.bytes, bytes, __ATOMIC_RELAXED);
    /* Where the driver refuses to pin it, the copy is slower but right. */
    GS_REAL(cuMemHostRegister_v2)(piece->address, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    return piece;
}

void gs_host_give(struct gs_host_piece *piece)
{
    bool keep = false;
    pthread_mutex_lock(&host.lock);
    if (host.kept_bytes + piece->bytes <= kept_limit) {
        piece->next = host.kept;
        host.kept = piece;
        host.kept_bytes += piece->bytes;
        keep = true;
    }
    pthread_mutex_unlock(&host.lock);
    if (!keep)
        unmap(piece);
}

void *gs_host_address(const struct gs_host_piece *piece)
{
    return piece->address;
}

uint64_t gs_host_bytes(void)
{
    return __atomic_load_n(&host.bytes, __ATOMIC_RELAXED);
}

void gs_host_after_fork(void)
{
    /* The pages were not inherited (MADV_DONTFORK). */
    pthread_mutex_init(&host.lock, NULL);
    host.kept = NULL;
    host.kept_bytes = host.bytes = 0;
}
