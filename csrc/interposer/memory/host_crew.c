/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Threads that create the pages of chunks for a move, and page-lock them.
 *
 * Measured on the host of an NVIDIA H100 with 16 processors, with large pages: one thread creates pages at 7 GB/s, 8
 * do at 39 GB/s, and 12 at 48 GB/s. One thread page-locks them at 27 GB/s, and two at 46 GB/s, but more do not help.
 * With all of it at once, a copy that waits for each chunk runs at 19 to 25 GB/s, and a page-locked copy at 55 GB/s.
 *
 * Each chunk passes through the stages (enum gs_host_stage) on its own, so a copy begins when its first chunk is ready.
 * During an eviction the threads also claim chunks ahead of the piece at hand: at most as many as it will still need,
 * and at most MOST_AHEAD. What is left at its end is given back.
 *
 * The threads exist only during a move, so none calls the driver while the process is parked.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/host_crew.h"

#include "base/lock.h"
#include "loader/real.h"
#include "memory/host_pool.h"
#include "memory/host_state.h"
#include "memory/population.h"
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_MAKERS = 12, LOCKERS = 2, MOST_AHEAD = 64 };

struct queue {
    struct gs_host_chunk *first, *last;
};

static struct {
    pthread_cond_t pages_asked, locks_asked, changed;
    struct queue to_make, to_lock, to_lock_ahead;
    unsigned makers, lockers; /* threads */
    unsigned under_way;       /* chunks that are not at rest */
    unsigned locking;         /* threads that are calling the driver */
    CUcontext context;
    struct gs_host_pool *pool; /* of the eviction; NULL: there is none */
    uint64_t expected;         /* number of chunks that it will still claim */
    struct gs_host_search search;
    uint32_t stock[MOST_AHEAD]; /* claimed ahead, in that order */
    unsigned stock_first, stock_count;
} crew = {
    .pages_asked = PTHREAD_COND_INITIALIZER,
    .locks_asked = PTHREAD_COND_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

static void push(struct queue *queue, struct gs_host_chunk *chunk)
{
    chunk->queued = NULL;
    if (queue->first == NULL)
        queue->first = chunk;
    else
        queue->last->queued = chunk;
    queue->last = chunk;
}

static struct gs_host_chunk *pop(struct queue *queue)
{
    struct gs_host_chunk *chunk = queue->first;
    if (chunk != NULL)
        queue->first = chunk->queued;
    return chunk;
}

/* --- One chunk --- */

static void begin_locked(struct gs_host_pool *pool, uint32_t i, bool ahead)
{
    struct gs_host_chunk *chunk = &pool->chunks[i];
    chunk->pool = pool;
    chunk->ahead = ahead;
    chunk->lacks_pages = false;
    chunk->stage = GS_HOST_TO_MAKE;
    crew.under_way++;
    gs_host_pool_list_partial(pool, chunk);
}

static void end_locked(struct gs_host_chunk *chunk)
{
    chunk->stage = GS_HOST_AT_REST;
    gs_host_pool_list_partial(chunk->pool, chunk);
    if (--crew.under_way == 0)
        pthread_cond_broadcast(&crew.locks_asked);
    pthread_cond_broadcast(&crew.changed);
}

/* The lock is released meanwhile. */
static void make_locked(struct gs_host_chunk *chunk)
{
    chunk->stage = GS_HOST_MAKING;
    gs_mutex_unlock(&gs_host.lock);
    bool made = gs_host_pool_populate(chunk->pool, (uint32_t)(chunk - chunk->pool->chunks));
    gs_mutex_lock(&gs_host.lock);
    chunk->lacks_pages = !made;
    if (!made || crew.context == NULL || (chunk->ahead && crew.pool == NULL)) {
        if (!made)
            crew.expected = 0;
        end_locked(chunk);
        return;
    }
    chunk->stage = GS_HOST_TO_LOCK;
    push(chunk->ahead ? &crew.to_lock_ahead : &crew.to_lock, chunk);
    pthread_cond_signal(&crew.locks_asked);
    pthread_cond_broadcast(&crew.changed);
}

/* Page-locks the next chunk. False: there is none. The lock is released meanwhile. */
static bool lock_next_locked(void)
{
    struct gs_host_chunk *chunk = pop(&crew.to_lock);
    if (chunk == NULL)
        chunk = pop(&crew.to_lock_ahead);
    if (chunk == NULL)
        return false;
    struct gs_host_pool *pool = chunk->pool;
    uint32_t i = (uint32_t)(chunk - pool->chunks);
    chunk->stage = GS_HOST_LOCKING;
    while (chunk->unlocking)
        gs_cond_wait(&crew.changed, &gs_host.lock);
    CUcontext context = crew.context;
    if (context != NULL && chunk->page_locked_in == NULL && !chunk->stays_locked &&
        gpushare_pool_begin_page_lock(&pool->shared->chunks[i], pool->slot)) {
        crew.locking++;
        gs_mutex_unlock(&gs_host.lock);
        CUresult result = GS_REAL(cuCtxSetCurrent)(context);
        if (result == CUDA_SUCCESS)
            result = gs_host_pool_page_lock(pool, i);
        gs_mutex_lock(&gs_host.lock);
        crew.locking--;
        /* The thread of host_ahead.c may have page-locked it meanwhile. */
        if (result == CUDA_SUCCESS || chunk->page_locked_in == NULL)
            gs_host_record_page_lock_locked(pool, i, result == CUDA_SUCCESS ? context : NULL);
        if (result == CUDA_SUCCESS)
            __atomic_add_fetch(&gs_host.page_locked_late, GPUSHARE_POOL_CHUNK, __ATOMIC_RELAXED);
        else
            gs_host_print_refused_locked(result);
    }
    end_locked(chunk);
    return true;
}

/* --- Ahead of the piece at hand --- */

/* Claims one more chunk. NULL: no more are needed, or there are none. */
static struct gs_host_chunk *claim_ahead_locked(void)
{
    uint32_t i;
    if (crew.pool == NULL || crew.stock_count == MOST_AHEAD || crew.stock_count >= crew.expected)
        return NULL;
    if (!gs_host_pool_claim_new(crew.pool, &crew.search, GS_HOST_UNITS, &i)) {
        crew.expected = crew.stock_count;
        return NULL;
    }
    crew.stock[(crew.stock_first + crew.stock_count++) % MOST_AHEAD] = i;
    begin_locked(crew.pool, i, true);
    return &crew.pool->chunks[i];
}

static bool take_from_stock(struct gs_host_pool *pool, uint32_t *i)
{
    if (crew.stock_count == 0)
        return false;
    *i = crew.stock[crew.stock_first];
    crew.stock_first = (crew.stock_first + 1) % MOST_AHEAD;
    crew.stock_count--;
    pool->chunks[*i].ahead = false;
    return true;
}

bool gs_host_crew_stock(struct gs_host_pool *pool, uint32_t *i)
{
    while (pool == crew.pool && take_from_stock(pool, i)) {
        crew.expected -= crew.expected != 0;
        pthread_cond_signal(&crew.pages_asked);
        if (!pool->chunks[*i].lacks_pages)
            return true;
        gpushare_pool_unclaim_chunk(&pool->shared->chunks[*i]);
    }
    return false;
}

/* --- Threads --- */

static void *make_pages(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare-pages");
    gs_mutex_lock(&gs_host.lock);
    for (;;) {
        struct gs_host_chunk *chunk = pop(&crew.to_make);
        if (chunk == NULL)
            chunk = claim_ahead_locked();
        if (chunk != NULL)
            make_locked(chunk);
        else if (crew.pool != NULL)
            gs_cond_wait(&crew.pages_asked, &gs_host.lock);
        else
            break;
    }
    crew.makers--;
    gs_mutex_unlock(&gs_host.lock);
    return NULL;
}

static void *page_lock(void *unused)
{
    (void)unused;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_setname_np(pthread_self(), "gpushare-locks");
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    gs_mutex_lock(&gs_host.lock);
    while (lock_next_locked() || crew.pool != NULL || crew.under_way != 0)
        if (crew.to_lock.first == NULL && crew.to_lock_ahead.first == NULL &&
            (crew.pool != NULL || crew.under_way != 0))
            gs_cond_wait(&crew.locks_asked, &gs_host.lock);
    crew.lockers--;
    gs_mutex_unlock(&gs_host.lock);
    return NULL;
}

static bool start_thread(void *(*function)(void *), unsigned *count)
{
    pthread_t thread;
    if (!gs_population_start_thread(&thread, function, NULL))
        return false;
    pthread_detach(thread);
    ++*count;
    return true;
}

/* The calling thread works, too, so a single chunk needs no threads. */
static void start_threads_locked(uint64_t chunks)
{
    unsigned most = gs_population_processors();
    if (most > MOST_MAKERS)
        most = MOST_MAKERS;
    while (crew.makers < most && crew.makers + 1 < chunks && start_thread(make_pages, &crew.makers))
        ;
    while (crew.lockers < LOCKERS && crew.lockers + 1 < chunks && start_thread(page_lock, &crew.lockers))
        ;
}

/* --- For a move --- */

static bool is_made(const struct gs_host_chunk *chunk)
{
    return chunk->stage != GS_HOST_TO_MAKE && chunk->stage != GS_HOST_MAKING;
}

bool gs_host_crew_complete(const struct gs_host_record *record, int state, CUcontext context)
{
    struct gs_host_pool *pool = record->pool;
    crew.context = context;
    unsigned asked = 0;
    for (unsigned u = 0; u < record->count; u++) {
        uint32_t i = record->units[u].number / GS_HOST_UNITS;
        if ((int)record->units[u].state != state || pool->chunks[i].page_locked_in != NULL ||
            pool->chunks[i].stage != GS_HOST_AT_REST)
            continue;
        begin_locked(pool, i, false);
        push(&crew.to_make, &pool->chunks[i]);
        asked++;
    }
    if (asked != 0) {
        start_threads_locked(asked);
        pthread_cond_broadcast(&crew.pages_asked);
    }
    bool made = true;
    for (unsigned u = 0; u < record->count; u++) {
        if ((int)record->units[u].state != state)
            continue;
        struct gs_host_chunk *chunk = &pool->chunks[record->units[u].number / GS_HOST_UNITS];
        while (!is_made(chunk)) {
            struct gs_host_chunk *next = pop(&crew.to_make);
            if (next != NULL)
                make_locked(next);
            else
                gs_cond_wait(&crew.changed, &gs_host.lock);
        }
        made = made && (chunk->page_locked_in != NULL || !chunk->lacks_pages);
    }
    return made;
}

void gs_host_crew_await(const struct gs_host_chunk *chunk)
{
    while (chunk->stage != GS_HOST_AT_REST)
        if (crew.lockers != 0 || !lock_next_locked())
            gs_cond_wait(&crew.changed, &gs_host.lock);
}

void gs_host_crew_settle(void)
{
    while (crew.under_way != 0)
        if (crew.lockers != 0 || !lock_next_locked())
            gs_cond_wait(&crew.changed, &gs_host.lock);
}

void gs_host_crew_unlocked(void)
{
    pthread_cond_broadcast(&crew.changed);
}

/* How many chunks without users are page-locked. */
static uint64_t free_page_locked(struct gs_host_pool *pool)
{
    struct gs_host_search search = {.preference = GS_HOST_PAGE_LOCKED, .end = GS_HOST_PREPARED};
    uint64_t count = 0;
    for (uint32_t i; pool->page_locked != 0 && gs_host_pool_find(pool, &search, &i);)
        count++;
    return count;
}

void gs_host_crew_begin_order(struct gs_host_pool *pool, uint64_t chunks, CUcontext context)
{
    uint64_t ready = free_page_locked(pool);
    if (crew.pool != NULL || ready >= chunks)
        return;
    crew.pool = pool;
    crew.context = context;
    crew.expected = chunks - ready;
    crew.search = (struct gs_host_search){.preference = GS_HOST_PREPARED, .end = GS_HOST_KEPT};
    start_threads_locked(crew.expected);
}

void gs_host_crew_end_order(void)
{
    struct gs_host_pool *pool = crew.pool;
    if (pool == NULL)
        return;
    crew.pool = NULL;
    for (struct gs_host_chunk *chunk; (chunk = pop(&crew.to_lock_ahead)) != NULL;)
        end_locked(chunk);
    pthread_cond_broadcast(&crew.pages_asked);
    pthread_cond_broadcast(&crew.locks_asked);
    gs_host_crew_settle();
    for (uint32_t i; take_from_stock(pool, &i);)
        gpushare_pool_unclaim_chunk(&pool->shared->chunks[i]);
}

bool gs_host_crew_works(void)
{
    return crew.under_way != 0;
}

void gs_host_crew_context_ends(CUcontext context)
{
    if (crew.context == context)
        crew.context = NULL;
    while (crew.locking != 0)
        gs_cond_wait(&crew.changed, &gs_host.lock);
}

void gs_host_crew_after_fork(void)
{
    pthread_cond_init(&crew.pages_asked, NULL);
    pthread_cond_init(&crew.locks_asked, NULL);
    pthread_cond_init(&crew.changed, NULL);
    crew.to_make = crew.to_lock = crew.to_lock_ahead = (struct queue){0};
    crew.makers = crew.lockers = crew.under_way = crew.locking = 0;
    crew.context = NULL;
    crew.pool = NULL;
    crew.stock_count = 0;
}
