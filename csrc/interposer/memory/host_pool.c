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
#include <sys/syscall.h>
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
    static uint64_t serial;
    struct gs_host_pool *pool = calloc(1, sizeof(*pool));
    if (pool != NULL) {
        pool->shared = mapping;
        pool->mapped = mapped;
        pool->serial = ++serial;
        pool->slot = slot;
        pool->user = gpushare_pool_user(slot);
        pool->count = pool->shared->chunk_count;
        pool->data = (char *)mapping + pool->shared->data_offset;
        pool->directory = (struct gpushare_pool_directory){
            .pool = mapping,
            .entries = (uint32_t *)((char *)mapping + pool->shared->directory_offset),
            .buckets = pool->shared->directory_buckets,
            .chunk_count = pool->count,
        };
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
    uint64_t buckets = shared->directory_buckets, bucket = GPUSHARE_POOL_BUCKET * sizeof(uint32_t);
    if ((buckets & (buckets - 1)) != 0 || shared->directory_offset < table || shared->directory_offset % bucket != 0 ||
        shared->directory_offset > shared->data_offset ||
        (shared->data_offset - shared->directory_offset) / bucket < buckets)
        return "its directory is inconsistent";
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
        size_t offset = gpushare_pool_data_offset((uint32_t)count), size = offset + count * GPUSHARE_POOL_CHUNK;
        struct gpushare_pool *shared = gpushare_pool_map(-1, 0, size);
        if ((void *)shared == MAP_FAILED)
            continue; /* if address space is limited, a smaller pool may be possible */
        shared->magic = GPUSHARE_POOL_MAGIC;
        shared->version = GPUSHARE_POOL_VERSION;
        shared->data_offset = offset;
        shared->chunk_count = shared->limit = (uint32_t)count;
        shared->directory_offset = gpushare_pool_directory_offset((uint32_t)count);
        /* Without a secret key, equal digests do not prove equal contents. */
        if (syscall(SYS_getrandom, shared->key, sizeof(shared->key), 0) == (long)sizeof(shared->key))
            shared->directory_buckets = gpushare_pool_directory_buckets((uint32_t)count);
        struct gs_host_pool *pool = new_pool(shared, size, 0);
        if (pool != NULL)
            pool->own = true;
        return pool;
    }
    return NULL;
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

bool gs_host_pool_usable(const struct gs_host_pool *pool, uint32_t i)
{
    const struct gs_host_chunk *chunk = &pool->chunks[i];
    return i < gs_host_pool_limit(pool) && chunk->stage == GS_HOST_AT_REST && !chunk->working &&
           gpushare_pool_place(&pool->shared->chunks[i]) == GPUSHARE_POOL_MEMORY &&
           (gpushare_pool_is_prepared(&pool->shared->chunks[i]) ||
            __atomic_load_n(&pool->shared->prepared_only, __ATOMIC_RELAXED) == 0);
}

static bool is_free(const struct gpushare_pool_chunk *chunk)
{
    uint64_t users = 0;
    for (unsigned unit = 0; unit < GS_HOST_UNITS; unit++)
        users |= gpushare_pool_users(chunk, unit);
    return users == 0;
}

static enum gs_host_preference preference_of(const struct gs_host_pool *pool, uint32_t i)
{
    const struct gpushare_pool_chunk *chunk = &pool->shared->chunks[i];
    if (gpushare_pool_chunk_used_at(chunk) != 0)
        return GS_HOST_KEPT;
    if (pool->chunks[i].page_locked_in != NULL)
        return GS_HOST_PAGE_LOCKED;
    if (!gpushare_pool_is_prepared(chunk))
        return GS_HOST_UNPREPARED;
    return gpushare_pool_page_locked_by(chunk) == 0 ? GS_HOST_PREPARED : GS_HOST_PREPARED_FOR_ANOTHER;
}

bool gs_host_pool_find(struct gs_host_pool *pool, struct gs_host_search *search, uint32_t *found)
{
    uint32_t limit = gs_host_pool_limit(pool);
    for (; search->preference < search->end; search->preference++, search->next = 0) {
        for (uint32_t i = search->next; i < limit; i++) {
            if (!is_free(&pool->shared->chunks[i]) || preference_of(pool, i) != search->preference ||
                !gs_host_pool_usable(pool, i))
                continue;
            *found = i;
            search->next = i + 1;
            return true;
        }
    }
    return false;
}

/* Claims the first units of a chunk, or none. */
static bool claim_first(struct gs_host_pool *pool, uint32_t i, unsigned units)
{
    struct gpushare_pool_chunk *chunk = &pool->shared->chunks[i];
    for (unsigned unit = 0; unit < units; unit++) {
        if (gpushare_pool_claim(chunk, unit, pool->user))
            continue;
        while (unit-- > 0)
            gpushare_pool_unclaim(chunk, unit);
        return false;
    }
    return true;
}

bool gs_host_pool_claim_new(struct gs_host_pool *pool, struct gs_host_search *search, unsigned units, uint32_t *found)
{
    while (gs_host_pool_find(pool, search, found))
        if (claim_first(pool, *found, units))
            return true;
    return false;
}

/* Lists the chunks without users whose kept copies are the oldest ones, in that order. */
static void list_oldest(struct gs_host_pool *pool)
{
    uint32_t limit = gs_host_pool_limit(pool);
    pool->oldest_count = pool->oldest_next = 0;
    for (uint32_t i = 0; i < limit; i++) {
        uint32_t used_at = is_free(&pool->shared->chunks[i]) && gs_host_pool_usable(pool, i)
                               ? gpushare_pool_chunk_used_at(&pool->shared->chunks[i])
                               : 0;
        unsigned place = pool->oldest_count;
        while (place > 0 && pool->oldest[place - 1].used_at > used_at)
            place--;
        if (used_at == 0 || place == GS_HOST_OLDEST)
            continue;
        if (pool->oldest_count < GS_HOST_OLDEST)
            pool->oldest_count++;
        for (unsigned moved = pool->oldest_count - 1; moved > place; moved--)
            pool->oldest[moved] = pool->oldest[moved - 1];
        pool->oldest[place] = (struct gs_host_kept){.chunk = i, .used_at = used_at};
    }
}

bool gs_host_pool_claim_kept(struct gs_host_pool *pool, unsigned units, uint32_t *found)
{
    /* The list may be old, so at its end it is made again, once. */
    for (bool listed = false;; listed = true) {
        while (pool->oldest_next < pool->oldest_count) {
            const struct gs_host_kept *kept = &pool->oldest[pool->oldest_next++];
            const struct gpushare_pool_chunk *chunk = &pool->shared->chunks[kept->chunk];
            if (!gs_host_pool_usable(pool, kept->chunk) || !is_free(chunk) ||
                gpushare_pool_chunk_used_at(chunk) != kept->used_at || !claim_first(pool, kept->chunk, units))
                continue;
            *found = kept->chunk;
            return true;
        }
        if (listed)
            return false;
        list_oldest(pool);
    }
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

void gs_host_pool_list_partial(struct gs_host_pool *pool, struct gs_host_chunk *chunk)
{
    bool partial = chunk->stage == GS_HOST_AT_REST && chunk->used != 0 && chunk->used != (1 << GS_HOST_UNITS) - 1;
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

void gs_host_pool_count_bare(struct gs_host_pool *pool, struct gs_host_chunk *chunk)
{
    bool bare = chunk->used != 0 && chunk->page_locked_in == NULL;
    pool->bare += (uint32_t)bare - (uint32_t)chunk->bare;
    chunk->bare = bare;
}
