/* SPDX-License-Identifier: BSD-3-Clause */
#include "beacon.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BEACON_MAGIC UINT64_C(0x53494d4245434e31)
#define LOOK_NS 20000000 /* how often a waiting process checks whether the recorder is alive */

struct page {
    uint64_t magic;
    uint64_t recorded, reached;
    int recorder;  /* pid of the last recorder */
    uint32_t wake; /* futex; counts the reached records */
};

struct sim_beacon {
    unsigned references;
    int fd;
    struct page *page;
};

static struct sim_beacon *map(int fd, bool fresh)
{
    struct sim_beacon *beacon = malloc(sizeof *beacon);
    struct page *page = MAP_FAILED;
    if (beacon != NULL && (!fresh || ftruncate(fd, sizeof *page) == 0))
        page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED && fresh)
        page->magic = BEACON_MAGIC;
    if (page != MAP_FAILED && page->magic == BEACON_MAGIC) {
        *beacon = (struct sim_beacon){1, fd, page};
        return beacon;
    }
    if (page != MAP_FAILED)
        munmap(page, sizeof *page);
    free(beacon);
    close(fd);
    return NULL;
}

struct sim_beacon *sim_beacon_new(void)
{
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim-event", 1u /* MFD_CLOEXEC */);
    return fd < 0 ? NULL : map(fd, true);
}

struct sim_beacon *sim_beacon_open(int fd)
{
    if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(struct page)) {
        close(fd);
        return NULL;
    }
    return map(fd, false);
}

void sim_beacon_retain(struct sim_beacon *beacon)
{
    __atomic_add_fetch(&beacon->references, 1, __ATOMIC_RELAXED);
}

void sim_beacon_release(struct sim_beacon *beacon)
{
    if (__atomic_sub_fetch(&beacon->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    munmap(beacon->page, sizeof *beacon->page);
    close(beacon->fd);
    free(beacon);
}

int sim_beacon_fd(const struct sim_beacon *beacon)
{
    return beacon->fd;
}

uint64_t sim_beacon_record(struct sim_beacon *beacon)
{
    __atomic_store_n(&beacon->page->recorder, getpid(), __ATOMIC_SEQ_CST);
    return __atomic_add_fetch(&beacon->page->recorded, 1, __ATOMIC_SEQ_CST);
}

void sim_beacon_reach(struct sim_beacon *beacon, uint64_t number)
{
    struct page *page = beacon->page;
    uint64_t before = __atomic_load_n(&page->reached, __ATOMIC_RELAXED);
    while (before < number &&
           !__atomic_compare_exchange_n(&page->reached, &before, number, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
    __atomic_add_fetch(&page->wake, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &page->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint64_t sim_beacon_last(const struct sim_beacon *beacon)
{
    return __atomic_load_n(&beacon->page->recorded, __ATOMIC_SEQ_CST);
}

static bool has_ended(int pid)
{
    if (pid == 0 || pid == getpid())
        return false;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0u);
    if (fd < 0)
        return errno == ESRCH;
    struct pollfd event = {.fd = fd, .events = POLLIN};
    bool ended = poll(&event, 1, 0) > 0;
    close(fd);
    return ended;
}

bool sim_beacon_passed(const struct sim_beacon *beacon, uint64_t number)
{
    return __atomic_load_n(&beacon->page->reached, __ATOMIC_SEQ_CST) >= number ||
           has_ended(__atomic_load_n(&beacon->page->recorder, __ATOMIC_SEQ_CST));
}

void sim_beacon_wait(const struct sim_beacon *beacon, uint64_t number)
{
    for (;;) {
        uint32_t wake = __atomic_load_n(&beacon->page->wake, __ATOMIC_SEQ_CST);
        if (sim_beacon_passed(beacon, number))
            return;
        const struct timespec slice = {.tv_nsec = LOOK_NS};
        syscall(SYS_futex, &beacon->page->wake, FUTEX_WAIT, wake, &slice, NULL, 0);
    }
}
