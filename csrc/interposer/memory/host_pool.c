/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/host_pool.h"

#include "base/print.h"
#include "loader/real.h"
#include "pool_pages.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t small; /* see gpushare_pool_enlarge */

void gs_host_pool_destroy(struct gs_host_pool *pool)
{
    munmap(pool->chunks, pool->count * sizeof(*pool->chunks));
    munmap(pool->shared, pool->mapped);
    free(pool);
}

/* Takes ownership of the mapping. NULL if there is no memory for the tables. */
static struct gs_host_pool *new_pool(void *mapping, size_t mapped, uint32_t slot)
{
    struct gs_host_pool *pool = calloc(1, sizeof(*pool));
    if (pool != NULL) {
        pool->shared = mapping;
        pool->mapped = mapped;
        pool->slot = slot;
        pool->count = pool->shared->chunk_count;
        pool->data = (char *)mapping + pool->shared->data_offset;
        pool->chunks = mmap(NULL, pool->count * sizeof(*pool->chunks), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pool->chunks != MAP_FAILED) {
            /* Recent kernels copy page-locked pages at fork, so the workers of a DataLoader would copy all of them. */
            madvise(mapping, mapped, MADV_DONTFORK);
            madvise(mapping, mapped, MADV_DONTDUMP);
            madvise(pool->chunks, pool->count * sizeof(*pool->chunks), MADV_DONTFORK);
            return pool;
        }
    }
    free(pool);
    munmap(mapping, mapped);
    return NULL;
}

/* Returns what is wrong with the header, or NULL. */
static const char *fault_of(const struct gpushare_pool *shared, uint64_t size, uint32_t slot)
{
    if (shared->magic != GPUSHARE_POOL_MAGIC)
        return "it is not a pool";
    if (shared->version != GPUSHARE_POOL_VERSION)
        return "it has another version";
    if (slot >= GPUSHARE_POOL_SLOTS)
        return "the place of this process in it is out of range";
    uint64_t count = shared->chunk_count, table = sizeof(*shared) + count * sizeof(shared->chunks[0]);
    if (count == 0 || count > GPUSHARE_POOL_MOST_CHUNKS || shared->data_offset < table ||
        shared->data_offset % (uint64_t)sysconf(_SC_PAGESIZE) != 0 || shared->data_offset > size ||
        (size - shared->data_offset) / GPUSHARE_POOL_CHUNK < count)
        return "its sizes are inconsistent";
    return NULL;
}

struct gs_host_pool *gs_host_pool_map(int fd, const struct stat *file, uint32_t slot)
{
    size_t size = (size_t)file->st_size;
    size_t mapped = (size + GPUSHARE_POOL_LARGE_PAGE - 1) / GPUSHARE_POOL_LARGE_PAGE * GPUSHARE_POOL_LARGE_PAGE;
    const char *fault = "it is too short";
    void *mapping = MAP_FAILED;
    if (size >= sizeof(struct gpushare_pool)) {
        mapping = gpushare_pool_map(fd, 0, mapped);
        fault = mapping != MAP_FAILED ? fault_of(mapping, size, slot) : "it could not be mapped";
    }
    if (fault != NULL) {
        if (mapping != MAP_FAILED)
            munmap(mapping, mapped);
        gs_print("the scheduler's pool of host memory cannot be used (%s); this process uses its own host memory",
                 fault);
        return NULL;
    }
    struct gs_host_pool *pool = new_pool(mapping, mapped, slot);
    if (pool != NULL) {
        pool->device = file->st_dev;
        pool->inode = file->st_ino;
    }
    return pool;
}

struct gs_host_pool *gs_host_pool_make(void)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t count = memory / GPUSHARE_POOL_CHUNK;
    if (count > GPUSHARE_POOL_MOST_CHUNKS)
        count = GPUSHARE_POOL_MOST_CHUNKS;
    for (; count != 0; count /= 2) {
        size_t table = sizeof(struct gpushare_pool) + count * sizeof(struct gpushare_pool_chunk);
        size_t offset = (table + GS_HOST_UNIT - 1) / GS_HOST_UNIT * GS_HOST_UNIT,
               size = offset + count * GPUSHARE_POOL_CHUNK;
        struct gpushare_pool *shared = gpushare_pool_map(-1, 0, size);
        if ((void *)shared == MAP_FAILED)
            continue; /* if address space is limited, a smaller pool may be possible */
        shared->magic = GPUSHARE_POOL_MAGIC;
        shared->version = GPUSHARE_POOL_VERSION;
        shared->data_offset = offset;
        shared->chunk_count = shared->limit = (uint32_t)count;
        struct gs_host_pool *pool = new_pool(shared, size, 0);
        if (pool != NULL)
            pool->own = true;
        return pool;
    }
    return NULL;
}

uint32_t gs_host_pool_index(const struct gs_host_pool *pool, const void *address)
{
    return (uint32_t)((size_t)((const char *)address - pool->data) / GPUSHARE_POOL_CHUNK);
}

char *gs_host_pool_address(const struct gs_host_pool *pool, uint32_t i)
{
    return pool->data + (size_t)i * GPUSHARE_POOL_CHUNK;
}

uint32_t gs_host_pool_limit(const struct gs_host_pool *pool)
{
    uint32_t limit = __atomic_load_n(&pool->shared->limit, __ATOMIC_RELAXED);
    return limit < pool->count ? limit : pool->count;
}

bool gs_host_pool_claim(struct gs_host_pool *pool, uint32_t i)
{
    return gpushare_pool_claim(&pool->shared->chunks[i], pool->slot + 1);
}

static enum gs_host_preference preference_of(const struct gs_host_pool *pool, uint32_t i)
{
    const struct gpushare_pool_chunk *chunk = &pool->shared->chunks[i];
    if (pool->chunks[i].page_locked_in != NULL)
        return GS_HOST_PAGE_LOCKED;
    if (!gpushare_pool_is_prepared(chunk))
        return GS_HOST_UNPREPARED;
    return gpushare_pool_page_locked_by(chunk) == 0 ? GS_HOST_PREPARED : GS_HOST_PREPARED_FOR_ANOTHER;
}

bool gs_host_pool_claim_best(struct gs_host_pool *pool, struct gs_host_search *search, uint32_t *found)
{
    uint32_t limit = gs_host_pool_limit(pool);
    bool prepared_only = __atomic_load_n(&pool->shared->prepared_only, __ATOMIC_RELAXED) != 0;
    enum gs_host_preference end = prepared_only ? GS_HOST_UNPREPARED : GS_HOST_NO_PREFERENCE;
    for (; search->preference < end; search->preference++, search->next = 0) {
        for (uint32_t i = search->next; i < limit; i++) {
            if (gpushare_pool_owner(&pool->shared->chunks[i]) == 0 && preference_of(pool, i) == search->preference &&
                gs_host_pool_claim(pool, i)) {
                *found = i;
                search->next = i + 1;
                return true;
            }
        }
    }
    return false;
}

bool gs_host_pool_populate(struct gs_host_pool *pool, uint32_t i)
{
    struct gpushare_pool_chunk *chunk = &pool->shared->chunks[i];
    if (!gpushare_pool_is_prepared(chunk))
        gpushare_pool_enlarge(gs_host_pool_address(pool, i), &small);
    if (madvise(gs_host_pool_address(pool, i), GPUSHARE_POOL_CHUNK, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
        return false;
    gpushare_pool_set_prepared(chunk, true);
    return true;
}

CUresult gs_host_pool_page_lock(struct gs_host_pool *pool, uint32_t i)
{
    CUresult result =
        GS_REAL(cuMemHostRegister_v2)(gs_host_pool_address(pool, i), GPUSHARE_POOL_CHUNK, CU_MEMHOSTREGISTER_PORTABLE);
    return result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? CUDA_SUCCESS : result;
}

uint8_t gs_host_pool_mask(unsigned first, unsigned units)
{
    return (uint8_t)(((1u << units) - 1) << first);
}

void gs_host_pool_list_partial(struct gs_host_pool *pool, struct gs_host_chunk *chunk)
{
    bool partial = !chunk->fresh && chunk->used != 0 && chunk->used != GS_HOST_ALL_UNITS;
    if (partial == (chunk->link != NULL))
        return;
    if (partial) {
        chunk->next = pool->partial;
        chunk->link = &pool->partial;
        pool->partial = chunk;
        if (chunk->next != NULL)
            chunk->next->link = &chunk->next;
    } else {
        *chunk->link = chunk->next;
        if (chunk->next != NULL)
            chunk->next->link = chunk->link;
        chunk->link = NULL;
    }
}

unsigned gs_host_pool_run_after(uint8_t used, unsigned from, unsigned *first)
{
    while (from < GS_HOST_UNITS && (used >> from & 1))
        from++;
    *first = from;
    while (from < GS_HOST_UNITS && !(used >> from & 1))
        from++;
    return from - *first;
}
