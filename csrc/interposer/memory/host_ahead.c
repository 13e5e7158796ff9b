/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The thread that page-locks host memory in advance and cleans up. host.c has the reasons.
 *
 * A thread that page-locks in a loop slows down the process's launches. Therefore chunks are small, and while the
 * application computes there is a pause after each.
 *
 * When groups take time slices, the data of one is evicted to the host memory that the other's data has just left. So
 * each process also page-locks chunks in advance that others use: they become free when its own time slice ends.
 *
 * The thread claims no units: page-locking and unlocking a chunk changes neither its content nor its users.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/host_ahead.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/awake.h"
#include "gate/slots.h"
#include "loader/real.h"
#include "memory/host_crew.h"
#include "memory/host_pool.h"
#include "memory/host_state.h"
#include "memory/population.h"
#include "memory/staging.h"
#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * The pause after each chunk while the gate is open. About 3 % of the time is spent in the driver, or 15 % while
 * another group waits.
 */
static const uint64_t pause_ns = 20 * GS_MILLISECOND;
static const uint64_t contended_pause_ns = 3 * GS_MILLISECOND;
/* How many chunks of other processes are populated and page-locked at a time. */
enum { JOINED_AT_ONCE = 8 };
/* A move counts as finished when no host memory was taken or released for this long. */
static const uint64_t between_moves_ns = 10 * GS_MILLISECOND;
/* What the last move left stays page-locked for this long, because the next one may follow at once. */
static const uint64_t linger_ns = 1000 * GS_MILLISECOND;
/* A process whose memory was evicted that long ago is probably not needed soon. */
static const uint64_t rest_after_ns = 15 * GS_SECOND;
/* Other processes release units, and the scheduler changes the limit, without notice. */
static const uint64_t look_again_ns = 1000 * GS_MILLISECOND;
/* A look at all chunks takes a moment, in which moves wait. */
static const uint64_t look_for_going_ns = 100 * GS_MILLISECOND;

struct job {
    enum { NOTHING, LOCK, UNLOCK, UNMAP, END_STAGING } kind;
    struct gs_host_pool *pool;
    uint32_t chunks[JOINED_AT_ONCE];
    unsigned count;
    bool free_pages; /* UNLOCK in a private pool: all units are claimed */
};

static void add_chunk(struct job *job, uint32_t i)
{
    job->pool->chunks[i].working = true;
    job->pool->chunks[i].unlocking = job->kind == UNLOCK;
    job->chunks[job->count++] = i;
}

/* Of an earlier pool, nothing stays page-locked. Once no record needs it, it is removed. */
static bool leave_pool(struct gs_host_pool **link, struct job *job)
{
    struct gs_host_pool *pool = *link;
    if (pool->page_locked == 0 && pool->records == 0) {
        *link = pool->next;
        *job = (struct job){.kind = UNMAP, .pool = pool};
        return true;
    }
    for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
        if (pool->chunks[i].page_locked_in == NULL || pool->chunks[i].used != 0)
            continue;
        *job = (struct job){.kind = UNLOCK, .pool = pool};
        add_chunk(job, i);
        return true;
    }
    return false;
}

/* Claims all units of a private pool's chunk, to free its pages. */
static bool claim_to_free(struct gs_host_pool *pool, uint32_t i, bool settled)
{
    return pool->own && settled && gpushare_pool_is_prepared(&pool->shared->chunks[i]) &&
           gpushare_pool_claim_chunk(&pool->shared->chunks[i], pool->user);
}

/* Whether the chunk is to leave memory, and this process can end its page-lock. */
static bool leaves(const struct gs_host_pool *pool, uint32_t i)
{
    return gpushare_pool_place(&pool->shared->chunks[i]) == GPUSHARE_POOL_GOING;
}

/*
 * A chunk that this process does not use or that is to leave memory, and that must not stay as it is. The highest
 * first, but chunks that had data of this process last.
 */
static bool find_excess(struct gs_host_pool *pool, bool settled, bool homes, struct job *job)
{
    bool over = pool->page_locked > gs_host.wanted;
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = pool->count; i-- > 0;) {
        const struct gs_host_chunk *chunk = &pool->chunks[i];
        bool page_locked = chunk->page_locked_in != NULL;
        bool going = page_locked && leaves(pool, i);
        if ((chunk->used != 0 && !going) || chunk->stage != GS_HOST_AT_REST || (chunk->homes != 0) != homes ||
            chunk->stays_locked || (page_locked && i < limit && !going && (!over || !settled)))
            continue;
        *job = (struct job){.kind = UNLOCK, .pool = pool, .free_pages = claim_to_free(pool, i, settled)};
        if (!page_locked && !job->free_pages)
            continue;
        add_chunk(job, i);
        return true;
    }
    return false;
}

/* Whether the chunk is to leave memory, and no move of this process needs its page-lock. */
static bool is_in_the_way(const struct gs_host_pool *pool, uint32_t i)
{
    const struct gs_host_chunk *chunk = &pool->chunks[i];
    return chunk->used == 0 && chunk->stage == GS_HOST_AT_REST && leaves(pool, i);
}

/* Chooses a page-locked chunk of any pool, or with `in_the_way` only such a one. */
static bool find_page_locked(bool in_the_way, struct job *job)
{
    for (struct gs_host_pool *pool = gs_host.pools; pool != NULL; pool = pool->next) {
        for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
            if (pool->chunks[i].page_locked_in == NULL || (in_the_way && !is_in_the_way(pool, i)))
                continue;
            *job = (struct job){.kind = UNLOCK, .pool = pool};
            add_chunk(job, i);
            return true;
        }
    }
    return false;
}

/* Whether the chunk may be page-locked without being used. Its pages stay until the bit is cleared. */
static bool begin_page_lock(struct gs_host_pool *pool, uint32_t i, struct job *job)
{
    struct gs_host_chunk *chunk = &pool->chunks[i];
    if (chunk->page_locked_in != NULL || chunk->stays_locked || chunk->stage != GS_HOST_AT_REST || chunk->working ||
        !gpushare_pool_begin_page_lock(&pool->shared->chunks[i], pool->slot))
        return false;
    add_chunk(job, i);
    return true;
}

/* Chooses chunks that have data of this process, or had it last. */
static bool find_used(struct gs_host_pool *pool, struct job *job)
{
    *job = (struct job){.kind = LOCK, .pool = pool};
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = 0; i < pool->count; i++) {
        const struct gs_host_chunk *chunk = &pool->chunks[i];
        bool had = chunk->homes != 0 && i < limit && pool->page_locked < gs_host.wanted &&
                   gpushare_pool_is_prepared(&pool->shared->chunks[i]);
        if ((chunk->used != 0 || had) && begin_page_lock(pool, i, job))
            return true;
    }
    return false;
}

/* Chooses chunks that other processes use, or for which they keep copies. */
static bool find_others(struct gs_host_pool *pool, struct job *job)
{
    *job = (struct job){.kind = LOCK, .pool = pool};
    uint64_t most = gs_host.wanted - pool->page_locked;
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = 0; i < limit && job->count < most && job->count < JOINED_AT_ONCE; i++) {
        const struct gpushare_pool_chunk *shared = &pool->shared->chunks[i];
        if (gpushare_pool_is_prepared(shared) &&
            (gpushare_pool_chunk_users(shared) != 0 || gpushare_pool_chunk_used_at(shared) != 0))
            begin_page_lock(pool, i, job);
    }
    return job->count != 0;
}

static bool find_to_page_lock(struct gs_host_pool *pool, struct job *job)
{
    struct gs_host_search search = {.preference = GS_HOST_PREPARED, .end = GS_HOST_KEPT};
    uint32_t i;
    if (gs_host.context == NULL || gs_host.refused || gs_host.rests)
        return false;
    if (find_used(pool, job))
        return true;
    if (pool->page_locked >= gs_host.wanted)
        return false;
    while (gs_host_pool_find(pool, &search, &i))
        if (begin_page_lock(pool, i, job))
            return true;
    return find_others(pool, job);
}

/* Chooses the next job. If there is none, returns how long to wait, or 0 to wait until something changes. */
static uint64_t choose_locked(struct job *job)
{
    *job = (struct job){.kind = NOTHING};
    uint64_t now = gs_now_ns();
    if (gs_host.pools == NULL)
        return 0;
    /* A move, also one of another process, may be waiting for the room of chunks that are to leave memory. */
    if (now - gs_host.looked_ns >= look_for_going_ns) {
        if (find_page_locked(true, job))
            return 0;
        gs_host.looked_ns = now;
    }
    /* Not only copies: while this thread page-locks, the driver maps memory ten times slower. */
    if (gs_host.taking != 0 || gs_host.moving != 0 || gs_host_crew_works() ||
        now - gs_host.last_move_ns < between_moves_ns)
        return between_moves_ns;
    for (struct gs_host_pool **link = &gs_host.pools->next; *link != NULL; link = &(*link)->next)
        if (leave_pool(link, job))
            return 0;
    struct gs_host_pool *pool = gs_host.pools;
    bool settled = now - gs_host.last_move_ns >= linger_ns;
    if (settled && gs_staging_is_present()) {
        job->kind = END_STAGING;
        return 0;
    }
    if (gs_host.away && now - gs_host.last_move_ns >= rest_after_ns)
        gs_host.rests = true;
    if (gs_host.rests && find_page_locked(false, job))
        return 0;
    if (find_excess(pool, settled, false, job) || find_excess(pool, settled, true, job) || find_to_page_lock(pool, job))
        return 0;
    *job = (struct job){.kind = NOTHING};
    if (!settled)
        return linger_ns / 10;
    bool idle = pool->page_locked == 0 && gs_host.wanted == 0 && pool->next == NULL;
    return idle ? 0 : pool->page_locked < gs_host.wanted ? look_again_ns / 4 : look_again_ns;
}

static void pause_if_computing(void)
{
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) >= GS_GATE_HELD)
        return;
    struct timespec pause = {.tv_nsec = (long)(gs_session_contended() != 0 ? contended_pause_ns : pause_ns)};
    nanosleep(&pause, NULL);
}

/* If a move begins meanwhile, it has priority. */
static void lock_chunks(const struct job *job, CUcontext context)
{
    struct gs_host_pool *pool = job->pool;
    struct gs_population_entry entries[JOINED_AT_ONCE] = {0};
    for (unsigned e = 0; e < job->count; e++)
        entries[e].chunk = job->chunks[e];
    struct gs_population population = {
        .lock = GS_MUTEX(GS_RANK_POPULATION),
        .progress = PTHREAD_COND_INITIALIZER,
        .pool = pool,
        .entries = entries,
        .count = job->count,
    };
    gs_population_begin(&population);
    GS_REAL(cuCtxSetCurrent)(context);
    bool continues = true;
    unsigned e = 0;
    for (; e < job->count && continues; e++) {
        uint32_t i = job->chunks[e];
        bool populated = gs_population_await(&population, e);
        CUresult result = populated ? gs_host_pool_page_lock(pool, i) : CUDA_ERROR_OUT_OF_MEMORY;
        gs_mutex_lock(&gs_host.lock);
        /* If this is false, a move has page-locked the chunk. */
        if (result == CUDA_SUCCESS || pool->chunks[i].page_locked_in == NULL)
            gs_host_record_page_lock_locked(pool, i, result == CUDA_SUCCESS ? context : NULL);
        gs_host.refused = gs_host.refused || result != CUDA_SUCCESS;
        if (populated && result != CUDA_SUCCESS)
            gs_host_print_refused_locked(result);
        continues = result == CUDA_SUCCESS && gs_host.taking == 0 && gs_host.moving == 0 && gs_host.context == context;
        pool->chunks[i].working = false;
        gs_mutex_unlock(&gs_host.lock);
        if (continues && e + 1 < job->count)
            pause_if_computing();
    }
    GS_REAL(cuCtxSetCurrent)(NULL);
    /* Other threads may be populating the rest, whose pages may be freed as soon as the bits are cleared. */
    gs_population_end(&population);
    gs_mutex_lock(&gs_host.lock);
    for (; e < job->count; e++) {
        if (pool->chunks[job->chunks[e]].page_locked_in == NULL)
            gs_host_record_page_lock_locked(pool, job->chunks[e], NULL);
        pool->chunks[job->chunks[e]].working = false;
    }
    gs_mutex_unlock(&gs_host.lock);
}

/*
 * The page-lock counts as gone before it is, so that no copy relies on it; but the pages stay until it is gone.
 */
static CUcontext begin_job_locked(const struct job *job)
{
    CUcontext context = job->kind == LOCK ? gs_host.context : NULL;
    struct gs_host_chunk *chunk = job->kind == UNLOCK ? &job->pool->chunks[job->chunks[0]] : NULL;
    if (chunk != NULL && chunk->page_locked_in != NULL) {
        context = chunk->page_locked_in;
        chunk->page_locked_in = NULL;
        job->pool->page_locked--;
        gs_host_pool_count_bare(job->pool, chunk);
    }
    gs_host.working = true;
    gs_host.working_in = context;
    gs_host.unlocking = job->kind == UNLOCK;
    return context;
}

static void end_job_locked(void)
{
    gs_host.working = false;
    gs_host.working_in = NULL;
    pthread_cond_broadcast(&gs_host.changed);
}

static void unlock_chunk(const struct job *job, CUcontext context)
{
    struct gs_host_pool *pool = job->pool;
    uint32_t i = job->chunks[0];
    char *address = gs_host_pool_address(pool, i);
    CUresult result = CUDA_SUCCESS;
    GS_REAL(cuCtxSetCurrent)(context);
    if (context != NULL)
        result = GS_REAL(cuMemHostUnregister)(address);
    GS_REAL(cuCtxSetCurrent)(NULL);
    if (job->free_pages && gs_host_page_lock_has_ended(result)) {
        gpushare_pool_spoil_chunk(&pool->shared->chunks[i]);
        if (madvise(address, GPUSHARE_POOL_CHUNK, MADV_REMOVE) == 0)
            gpushare_pool_set_prepared(&pool->shared->chunks[i], false);
    }
    gs_mutex_lock(&gs_host.lock);
    gs_host_record_unlock_locked(pool, i, result);
    if (job->free_pages)
        gpushare_pool_unclaim_chunk(&pool->shared->chunks[i]);
    pool->chunks[i].working = pool->chunks[i].unlocking = false;
    gs_host_crew_unlocked();
    gs_mutex_unlock(&gs_host.lock);
}

/* The lock is released during the wait. */
static void wait_locked(uint64_t nanoseconds)
{
    if (nanoseconds == 0) {
        gs_cond_wait(&gs_host.changed, &gs_host.lock);
        return;
    }
    uint64_t end = gs_now_ns() + nanoseconds;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000), .tv_nsec = (long)(end % 1000000000)};
    gs_cond_timedwait(&gs_host.changed, &gs_host.lock, &until);
}

/* The capture may begin while the process is parked. */
static void relax_captures(void)
{
    struct gs_slot *called;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    gs_mutex_lock(&gs_host.lock);
    while (!gs_awake_try_enter(&called))
        wait_locked(look_again_ns);
    gs_mutex_unlock(&gs_host.lock);
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    gs_awake_leave(called);
}

static void *work_ahead(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare-host");
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    relax_captures();
    gs_mutex_lock(&gs_host.lock);
    for (;;) {
        struct job job;
        struct gs_slot *called;
        if (!gs_awake_try_enter(&called)) {
            wait_locked(look_again_ns); /* nothing to do either: waking up calls this thread */
            continue;
        }
        uint64_t patience = choose_locked(&job);
        if (job.kind == NOTHING) {
            gs_awake_leave(called);
            wait_locked(patience);
            continue;
        }
        CUcontext context = begin_job_locked(&job);
        gs_mutex_unlock(&gs_host.lock);
        if (job.kind == UNMAP)
            gs_host_pool_destroy(job.pool);
        else if (job.kind == LOCK)
            lock_chunks(&job, context);
        else if (job.kind == UNLOCK)
            unlock_chunk(&job, context);
        else
            gs_staging_end();
        gs_mutex_lock(&gs_host.lock);
        end_job_locked();
        gs_mutex_unlock(&gs_host.lock);
        gs_awake_leave(called);
        pause_if_computing();
        gs_mutex_lock(&gs_host.lock);
    }
    return NULL;
}

/* Without the thread, memory stays as it is. */
void gs_host_wake_thread(void)
{
    if (gs_host.started) {
        pthread_cond_broadcast(&gs_host.changed);
        return;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&gs_host.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_t thread;
    gs_host.started = gs_population_start_thread(&thread, work_ahead, NULL);
    if (gs_host.started)
        pthread_detach(thread);
}

void gs_host_prepare(uint64_t bytes, CUcontext context)
{
    gs_mutex_lock(&gs_host.lock);
    gs_host.wanted = (bytes + GPUSHARE_POOL_CHUNK - 1) / GPUSHARE_POOL_CHUNK;
    gs_host.refused = false;
    if (context != NULL)
        gs_host.context = context;
    if (bytes == 0 ? gs_host.pools != NULL : gs_host_present_locked() != NULL)
        gs_host_wake_thread();
    gs_mutex_unlock(&gs_host.lock);
}

void gs_host_context_ends(CUcontext context)
{
    CUcontext before = NULL;
    gs_staging_context_ends(context);
    GS_REAL(cuCtxGetCurrent)(&before);
    GS_REAL(cuCtxSetCurrent)(context);
    gs_mutex_lock(&gs_host.lock);
    if (gs_host.context == context)
        gs_host.context = NULL;
    while (gs_host.working_in == context && context != NULL)
        wait_locked(0);
    gs_host_crew_context_ends(context);
    for (struct gs_host_pool *pool = gs_host.pools; pool != NULL; pool = pool->next) {
        for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
            if (pool->chunks[i].page_locked_in != context)
                continue;
            CUresult result = GS_REAL(cuMemHostUnregister)(gs_host_pool_address(pool, i));
            gs_host_record_unlock_locked(pool, i, result);
        }
    }
    gs_mutex_unlock(&gs_host.lock);
    GS_REAL(cuCtxSetCurrent)(before);
}

void gs_host_set_away(bool away)
{
    gs_mutex_lock(&gs_host.lock);
    gs_host.away = away;
    if (!away) {
        gs_host.rests = false;
        gs_host.last_move_ns = gs_now_ns();
    }
    gs_mutex_unlock(&gs_host.lock);
}

bool gs_host_rest(bool (*busy)(void))
{
    bool left = true;
    gs_mutex_lock(&gs_host.lock);
    bool unused = gs_host.pools == NULL;
    gs_mutex_unlock(&gs_host.lock);
    if (unused)
        return true;
    gs_staging_end();
    CUcontext before = NULL;
    GS_REAL(cuCtxGetCurrent)(&before);
    gs_mutex_lock(&gs_host.lock);
    gs_host.taking++;
    gs_host.away = gs_host.rests = true;
    gs_host_crew_settle();
    while (gs_host.working)
        gs_cond_wait(&gs_host.changed, &gs_host.lock);
    for (struct job job; (left = find_page_locked(false, &job));) {
        CUcontext context = begin_job_locked(&job);
        gs_mutex_unlock(&gs_host.lock);
        unlock_chunk(&job, context);
        bool stops = busy();
        gs_mutex_lock(&gs_host.lock);
        end_job_locked();
        if (stops)
            break;
    }
    gs_host.taking--;
    gs_host.rests = !left;
    gs_mutex_unlock(&gs_host.lock);
    GS_REAL(cuCtxSetCurrent)(before);
    return !left;
}

void gs_host_after_fork(void)
{
    /* The child inherited neither the data nor the tables (MADV_DONTFORK), nor the thread. */
    gs_mutex_after_fork(&gs_host.lock);
    gs_host.pools = NULL;
    gs_host.context = gs_host.working_in = NULL;
    gs_host.wanted = gs_host.taking = gs_host.moving = 0;
    gs_host.started = gs_host.working = false;
    gs_host.away = gs_host.rests = false;
    gs_host_crew_after_fork();
    gs_staging_after_fork();
    gs_host.bytes = gs_host.shared = gs_host.page_locked_late = 0;
}
