/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One lock guards everything. This process claims and returns chunks of the shared table under it, but other processes
 * do so at any time. The driver is called without it, except in gs_host_context_ends and gs_host_restored.
 *
 * Creating pages and page-locking them take longer than copying (55 GB/s), so both are done in advance. Measured on the
 * host of an NVIDIA H200:
 *
 * - populating new pages: 2.6 GB/s by 1 thread, 5.6 by 4;
 * - populating pages that exist: 3.5 GB/s by 1 thread, 12 by 4, 9 by 16;
 * - page-locking after that: 21 to 28 GB/s;
 * - page-locking pages that exist but are not populated: 3 GB/s, all of it in the driver.
 *
 * Therefore each chunk is populated before it is page-locked, by several threads if a move waits for it. A thread that
 * page-locks in a loop slows down the process's launches. Therefore chunks are small, and while the application
 * computes there is a pause after each.
 *
 * When groups take time slices, the data of one is evicted to the host memory that the other's data has just left. So
 * each process also page-locks chunks in advance that others use: they become free when its own time slice ends.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/host.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/awake.h"
#include "gate/slots.h"
#include "loader/real.h"
#include "memory/host_pool.h"
#include "memory/population.h"
#include "pool.h"
#include "protocol.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
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
/* A move counts as finished when no host memory was taken or returned for this long. */
static const uint64_t between_moves_ns = 10 * GS_MILLISECOND;
/* What the last move left stays page-locked for this long, because the next one may follow at once. */
static const uint64_t linger_ns = 1000 * GS_MILLISECOND;
/* Other processes return chunks, and the scheduler changes the limit, without notice. */
static const uint64_t look_again_ns = 1000 * GS_MILLISECOND;

struct gs_host_piece {
    struct gs_host_pool *pool;
    unsigned count;
    struct gs_host_extent extents[];
};

static struct {
    struct gs_mutex lock;
    pthread_cond_t changed;
    struct gs_host_pool *pools; /* the first is the current pool; the others are kept for the data in them */
    CUcontext context;          /* for page-locking in advance; NULL: none */
    uint64_t wanted;            /* number of chunks to page-lock */
    bool refused;               /* the last attempt to page-lock in advance failed */
    bool started;
    CUcontext working_in; /* the thread is calling the driver */
    unsigned taking;
    uint64_t last_move_ns;
    uint64_t bytes, page_locked_late; /* atomic */
    bool printed_page_lock_refused;
} host = {.lock = GS_MUTEX(GS_RANK_HOST)};

/* --- Pools --- */

static void wake_thread(void);

static void make_present_locked(struct gs_host_pool *pool)
{
    pool->next = host.pools;
    host.pools = pool;
    wake_thread(); /* unused chunks of the earlier pool are released */
}

void gs_host_offer(int fd, uint32_t slot)
{
    struct stat file;
    bool offered = fd >= 0 && syscall(SYS_fstat, fd, &file) == 0;
    gs_mutex_lock(&host.lock);
    struct gs_host_pool **link = &host.pools;
    while (*link != NULL &&
           (offered ? (*link)->own || (*link)->device != file.st_dev || (*link)->inode != file.st_ino : !(*link)->own))
        link = &(*link)->next;
    struct gs_host_pool *pool = *link;
    if (pool != NULL)
        *link = pool->next;
    else if (offered)
        pool = gs_host_pool_map(fd, &file, slot);
    if (pool == NULL && host.pools != NULL && !host.pools->own)
        pool = gs_host_pool_make(); /* no more chunks are claimed from the earlier scheduler's pool */
    if (pool != NULL)
        make_present_locked(pool);
    gs_mutex_unlock(&host.lock);
    if (fd >= 0)
        close(fd);
}

static struct gs_host_pool *present_pool_locked(void)
{
    if (host.pools == NULL)
        host.pools = gs_host_pool_make();
    return host.pools;
}

/* --- Chunks --- */

static void record_page_lock_locked(struct gs_host_pool *pool, uint32_t i, CUcontext context)
{
    gpushare_pool_set_page_locked(&pool->shared->chunks[i], pool->slot, context != NULL);
    pool->page_locked += (context != NULL) - (pool->chunks[i].page_locked_in != NULL);
    pool->chunks[i].page_locked_in = context;
}

static void print_page_lock_refused_locked(CUresult result)
{
    /* In a process that is exiting, the driver refuses every call. */
    if (result == CUDA_ERROR_DEINITIALIZED)
        return;
    if (!host.printed_page_lock_refused)
        gs_print("the driver does not page-lock host memory, so evicting and restoring data is slower");
    host.printed_page_lock_refused = true;
}

/* --- Pieces --- */

static void add_extent(struct gs_host_piece *piece, uint32_t i, unsigned first, unsigned units)
{
    struct gs_host_pool *pool = piece->pool;
    piece->extents[piece->count++] = (struct gs_host_extent){
        .address = gs_host_pool_address(pool, i) + (size_t)first * GS_HOST_UNIT,
        .bytes = (size_t)units * GS_HOST_UNIT,
    };
    pool->chunks[i].used |= gs_host_pool_mask(first, units);
    gs_host_pool_list_partial(pool, &pool->chunks[i]);
}

static bool add_run(struct gs_host_piece *piece, unsigned units)
{
    struct gs_host_pool *pool = piece->pool;
    for (struct gs_host_chunk *chunk = pool->partial; chunk != NULL; chunk = chunk->next) {
        unsigned first, run;
        for (unsigned from = 0; (run = gs_host_pool_run_after(chunk->used, from, &first)) != 0; from = first + run) {
            if (run < units)
                continue;
            add_extent(piece, (uint32_t)(chunk - pool->chunks), first, units);
            return true;
        }
    }
    return false;
}

static bool add_scattered(struct gs_host_piece *piece, size_t units)
{
    struct gs_host_pool *pool = piece->pool;
    size_t available = 0;
    for (const struct gs_host_chunk *chunk = pool->partial; chunk != NULL && available < units; chunk = chunk->next)
        available += GS_HOST_UNITS - (unsigned)__builtin_popcount(chunk->used);
    if (available < units)
        return false;
    while (units != 0) {
        unsigned first, run = gs_host_pool_run_after(pool->partial->used, 0, &first);
        if (run > units)
            run = (unsigned)units;
        add_extent(piece, (uint32_t)(pool->partial - pool->chunks), first, run);
        units -= run;
    }
    return true;
}

static bool add_fresh(struct gs_host_piece *piece, struct gs_host_search *search, unsigned units)
{
    struct gs_host_pool *pool = piece->pool;
    uint32_t i;
    if (!gs_host_pool_claim_best(pool, search, &i))
        return false;
    pool->chunks[i].fresh = true;
    __atomic_add_fetch(&host.bytes, GPUSHARE_POOL_CHUNK, __ATOMIC_RELAXED);
    add_extent(piece, i, 0, units);
    return true;
}

/* Takes whole chunks, and for the rest free units of partly used chunks. */
static bool place(struct gs_host_piece *piece, size_t units)
{
    struct gs_host_search search = {.preference = GS_HOST_PAGE_LOCKED};
    while (units >= GS_HOST_UNITS && add_fresh(piece, &search, GS_HOST_UNITS))
        units -= GS_HOST_UNITS;
    return units == 0 || (units < GS_HOST_UNITS && add_run(piece, (unsigned)units)) || add_scattered(piece, units) ||
           (units < GS_HOST_UNITS && add_fresh(piece, &search, (unsigned)units));
}

static void release_locked(struct gs_host_piece *piece)
{
    struct gs_host_pool *pool = piece->pool;
    for (unsigned e = 0; e < piece->count; e++) {
        const struct gs_host_extent *extent = &piece->extents[e];
        uint32_t i = gs_host_pool_index(pool, extent->address);
        struct gs_host_chunk *chunk = &pool->chunks[i];
        size_t offset = (size_t)((char *)extent->address - gs_host_pool_address(pool, i));
        chunk->used &= (uint8_t)~gs_host_pool_mask((unsigned)(offset / GS_HOST_UNIT),
                                                   (unsigned)((extent->bytes + GS_HOST_UNIT - 1) / GS_HOST_UNIT));
        chunk->fresh = false;
        gs_host_pool_list_partial(pool, chunk);
        if (chunk->used == 0) {
            __atomic_sub_fetch(&host.bytes, GPUSHARE_POOL_CHUNK, __ATOMIC_RELAXED);
            gpushare_pool_return(&pool->shared->chunks[i]);
        }
    }
    pool->pieces--;
    free(piece);
    wake_thread();
}

/* --- Taking and returning --- */

static void unset_fresh_locked(struct gs_host_pool *pool, uint32_t i)
{
    pool->chunks[i].fresh = false;
    gs_host_pool_list_partial(pool, &pool->chunks[i]);
}

/* Page-locks the chunk, if there is a context for that. */
static void finish_chunk(struct gs_host_pool *pool, uint32_t i, CUcontext context)
{
    CUresult result = context != NULL ? gs_host_pool_page_lock(pool, i) : CUDA_ERROR_INVALID_CONTEXT;
    gs_mutex_lock(&host.lock);
    if (result == CUDA_SUCCESS) {
        record_page_lock_locked(pool, i, context);
        __atomic_add_fetch(&host.page_locked_late, GPUSHARE_POOL_CHUNK, __ATOMIC_RELAXED);
    } else if (context != NULL) {
        print_page_lock_refused_locked(result);
    }
    unset_fresh_locked(pool, i);
    gs_mutex_unlock(&host.lock);
}

/* Page-locks the chunks that were just claimed. False if the host has no pages for them. */
static bool complete_piece(struct gs_host_piece *piece, CUcontext context)
{
    struct gs_host_pool *pool = piece->pool;
    struct gs_population population = {
        .lock = GS_MUTEX(GS_RANK_POPULATION),
        .progress = PTHREAD_COND_INITIALIZER,
        .pool = pool,
        .entries = calloc(piece->count, sizeof(*population.entries)),
    };
    if (population.entries == NULL)
        return false;
    gs_mutex_lock(&host.lock);
    for (unsigned e = 0; e < piece->count; e++) {
        uint32_t i = gs_host_pool_index(pool, piece->extents[e].address);
        if (!pool->chunks[i].fresh)
            continue;
        if (pool->chunks[i].page_locked_in != NULL)
            unset_fresh_locked(pool, i);
        else
            population.entries[population.count++].chunk = i;
    }
    gs_mutex_unlock(&host.lock);
    gs_population_begin(&population);
    unsigned done = 0;
    while (done < population.count && gs_population_await(&population, done))
        finish_chunk(pool, population.entries[done++].chunk, context);
    gs_population_end(&population);
    free(population.entries);
    return done == population.count;
}

/*
 * The chunks that the thread has claimed for page-locking are free again soon. While memory is being taken, it claims
 * no more. The lock is released during the wait; the piece keeps its pool.
 */
static bool place_locked(struct gs_host_piece *piece, size_t units)
{
    size_t placed = 0;
    while (!place(piece, units - placed)) {
        if (host.working_in == NULL)
            return false;
        gs_cond_wait(&host.changed, &host.lock);
        placed = 0;
        for (unsigned e = 0; e < piece->count; e++)
            placed += piece->extents[e].bytes / GS_HOST_UNIT;
    }
    return true;
}

struct gs_host_piece *gs_host_take(size_t bytes)
{
    size_t units = (bytes + GS_HOST_UNIT - 1) / GS_HOST_UNIT;
    CUcontext context = NULL;
    GS_REAL(cuCtxGetCurrent)(&context);
    struct gs_host_piece *piece = malloc(sizeof(*piece) + units * sizeof(piece->extents[0]));
    if (piece == NULL)
        return NULL;
    piece->count = 0;
    gs_mutex_lock(&host.lock);
    piece->pool = present_pool_locked();
    if (piece->pool == NULL) {
        gs_mutex_unlock(&host.lock);
        free(piece);
        return NULL;
    }
    piece->pool->pieces++;
    if (host.context == NULL)
        host.context = context;
    host.taking++;
    bool placed = place_locked(piece, units);
    gs_mutex_unlock(&host.lock);
    bool complete = placed && complete_piece(piece, context);
    gs_mutex_lock(&host.lock);
    host.taking--;
    host.last_move_ns = gs_now_ns();
    if (!complete) {
        release_locked(piece);
        piece = NULL;
    }
    gs_mutex_unlock(&host.lock);
    if (piece != NULL)
        piece->extents[piece->count - 1].bytes -= units * GS_HOST_UNIT - bytes;
    return piece;
}

void gs_host_return(struct gs_host_piece *piece)
{
    gs_mutex_lock(&host.lock);
    host.last_move_ns = gs_now_ns();
    release_locked(piece);
    gs_mutex_unlock(&host.lock);
}

unsigned gs_host_extents(const struct gs_host_piece *piece, const struct gs_host_extent **extents)
{
    *extents = piece->extents;
    return piece->count;
}

uint64_t gs_host_bytes(void)
{
    return __atomic_load_n(&host.bytes, __ATOMIC_RELAXED);
}

uint64_t gs_host_limit(void)
{
    gs_mutex_lock(&host.lock);
    const struct gs_host_pool *pool = host.pools;
    uint64_t bytes = pool != NULL ? (uint64_t)gs_host_pool_limit(pool) * GPUSHARE_POOL_CHUNK : 0;
    gs_mutex_unlock(&host.lock);
    struct sysinfo system;
    if (pool == NULL && sysinfo(&system) == 0)
        bytes = (uint64_t)system.totalram * system.mem_unit;
    return bytes;
}

uint64_t gs_host_page_locked_late(void)
{
    return __atomic_load_n(&host.page_locked_late, __ATOMIC_RELAXED);
}

/* --- The thread that page-locks in advance and cleans up --- */

struct job {
    enum { NOTHING, LOCK, JOIN, UNLOCK, UNMAP } kind;
    struct gs_host_pool *pool;
    uint32_t chunk;
    bool claimed;
    uint32_t joined[JOINED_AT_ONCE]; /* several chunks in place of one */
    unsigned joined_count;
};

/* Of an earlier pool, nothing stays page-locked. Once it contains no piece, it is removed. */
static bool leave_pool(struct gs_host_pool **link, struct job *job)
{
    struct gs_host_pool *pool = *link;
    if (pool->page_locked == 0 && pool->pieces == 0) {
        *link = pool->next;
        *job = (struct job){.kind = UNMAP, .pool = pool};
        return true;
    }
    for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
        if (pool->chunks[i].page_locked_in == NULL)
            continue;
        bool claimed = gs_host_pool_claim(pool, i);
        /*
         * This process's lock on another process's chunk does no harm, and neither does unlocking it; but then the
         * mapping must be removed as well.
         */
        if (!claimed && pool->pieces != 0)
            continue;
        *job = (struct job){.kind = UNLOCK, .pool = pool, .chunk = i, .claimed = claimed};
        return true;
    }
    return false;
}

/* A free chunk that must not stay as it is; the highest first. */
static bool claim_excess(struct gs_host_pool *pool, bool settled, struct job *job)
{
    bool over = pool->page_locked > host.wanted;
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = pool->count; i-- > 0;) {
        struct gpushare_pool_chunk *shared = &pool->shared->chunks[i];
        bool page_locked = pool->chunks[i].page_locked_in != NULL;
        bool excess =
            page_locked ? i >= limit || (over && settled) : pool->own && settled && gpushare_pool_is_prepared(shared);
        if (!excess || gpushare_pool_owner(shared) != 0 || !gs_host_pool_claim(pool, i))
            continue;
        *job = (struct job){.kind = UNLOCK, .pool = pool, .chunk = i, .claimed = true};
        return true;
    }
    return false;
}

/* Chooses chunks that other processes use. */
static bool join_others(struct gs_host_pool *pool, struct job *job)
{
    *job = (struct job){.kind = JOIN, .pool = pool};
    uint64_t most = host.wanted - pool->page_locked;
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = 0; i < limit && job->joined_count < most && job->joined_count < JOINED_AT_ONCE; i++) {
        struct gpushare_pool_chunk *shared = &pool->shared->chunks[i];
        if (pool->chunks[i].page_locked_in == NULL && gpushare_pool_owner(shared) != pool->slot + 1 &&
            gpushare_pool_owner(shared) != 0 && gpushare_pool_is_prepared(shared) &&
            gpushare_pool_join(shared, pool->slot))
            job->joined[job->joined_count++] = i;
    }
    return job->joined_count != 0;
}

static bool claim_to_page_lock(struct gs_host_pool *pool, struct job *job)
{
    struct gs_host_search search = {.preference = GS_HOST_PREPARED};
    uint32_t i;
    if (host.context == NULL || host.refused || pool->page_locked >= host.wanted)
        return false;
    if (!gs_host_pool_claim_best(pool, &search, &i))
        return join_others(pool, job);
    *job = (struct job){.kind = LOCK, .pool = pool, .chunk = i, .claimed = true};
    return true;
}

/* Chooses the next job. If there is none, returns how long to wait, or 0 to wait until something changes. */
static uint64_t choose_locked(struct job *job)
{
    *job = (struct job){.kind = NOTHING};
    uint64_t now = gs_now_ns();
    if (host.pools == NULL)
        return 0;
    if (host.taking != 0 || now - host.last_move_ns < between_moves_ns)
        return between_moves_ns;
    for (struct gs_host_pool **link = &host.pools->next; *link != NULL; link = &(*link)->next)
        if (leave_pool(link, job))
            return 0;
    struct gs_host_pool *pool = host.pools;
    bool settled = now - host.last_move_ns >= linger_ns;
    if (claim_excess(pool, settled, job) || claim_to_page_lock(pool, job))
        return 0;
    if (!settled)
        return linger_ns / 10;
    bool idle = pool->page_locked == 0 && host.wanted == 0 && pool->next == NULL;
    return idle ? 0 : pool->page_locked < host.wanted ? look_again_ns / 4 : look_again_ns;
}

static void pause_if_computing(void)
{
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) >= GS_GATE_HELD)
        return;
    struct timespec pause = {.tv_nsec = (long)(gs_session_contended() != 0 ? contended_pause_ns : pause_ns)};
    nanosleep(&pause, NULL);
}

/* If a move begins meanwhile, it has priority. */
static void join(const struct job *job, CUcontext context)
{
    struct gs_host_pool *pool = job->pool;
    struct gs_population_entry entries[JOINED_AT_ONCE] = {0};
    for (unsigned e = 0; e < job->joined_count; e++)
        entries[e].chunk = job->joined[e];
    struct gs_population population = {
        .lock = GS_MUTEX(GS_RANK_POPULATION),
        .progress = PTHREAD_COND_INITIALIZER,
        .pool = pool,
        .entries = entries,
        .count = job->joined_count,
    };
    gs_population_begin(&population);
    GS_REAL(cuCtxSetCurrent)(context);
    bool continues = true;
    for (unsigned e = 0; e < job->joined_count; e++) {
        uint32_t i = job->joined[e];
        bool locked =
            continues && gs_population_await(&population, e) && gs_host_pool_page_lock(pool, i) == CUDA_SUCCESS;
        gs_mutex_lock(&host.lock);
        /* If this is false, a move has claimed and page-locked the chunk. */
        if (locked || pool->chunks[i].page_locked_in == NULL)
            record_page_lock_locked(pool, i, locked ? context : NULL);
        host.refused = host.refused || (continues && !locked);
        continues = locked && host.taking == 0 && host.context == context;
        gs_mutex_unlock(&host.lock);
        if (continues && e + 1 < job->joined_count)
            pause_if_computing();
    }
    GS_REAL(cuCtxSetCurrent)(NULL);
    gs_population_end(&population);
}

static void do_job(const struct job *job, CUcontext context)
{
    struct gs_host_pool *pool = job->pool;
    bool no_pages = false;
    CUresult result = CUDA_SUCCESS;
    GS_REAL(cuCtxSetCurrent)(context);
    if (job->kind == LOCK) {
        no_pages = !gs_host_pool_populate(pool, job->chunk);
        result = no_pages ? CUDA_ERROR_OUT_OF_MEMORY : gs_host_pool_page_lock(pool, job->chunk);
    } else {
        if (context != NULL)
            GS_REAL(cuMemHostUnregister)(gs_host_pool_address(pool, job->chunk));
        if (pool->own && madvise(gs_host_pool_address(pool, job->chunk), GPUSHARE_POOL_CHUNK, MADV_REMOVE) == 0)
            gpushare_pool_set_prepared(&pool->shared->chunks[job->chunk], false);
    }
    GS_REAL(cuCtxSetCurrent)(NULL);
    gs_mutex_lock(&host.lock);
    if (result != CUDA_SUCCESS) {
        host.refused = true;
        if (!no_pages)
            print_page_lock_refused_locked(result);
    } else {
        record_page_lock_locked(pool, job->chunk, job->kind == LOCK ? context : NULL);
    }
    if (job->claimed)
        gpushare_pool_return(&pool->shared->chunks[job->chunk]);
    gs_mutex_unlock(&host.lock);
}

/* The lock is released during the wait. */
static void wait_locked(uint64_t nanoseconds)
{
    if (nanoseconds == 0) {
        gs_cond_wait(&host.changed, &host.lock);
        return;
    }
    uint64_t end = gs_now_ns() + nanoseconds;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000), .tv_nsec = (long)(end % 1000000000)};
    gs_cond_timedwait(&host.changed, &host.lock, &until);
}

/* The capture may begin while the process is parked. */
static void relax_captures(void)
{
    struct gs_slot *called;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    gs_mutex_lock(&host.lock);
    while (!gs_awake_try_enter(&called))
        wait_locked(look_again_ns);
    gs_mutex_unlock(&host.lock);
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    gs_awake_leave(called);
}

static void *work_ahead(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare-host");
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    relax_captures();
    gs_mutex_lock(&host.lock);
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
        CUcontext context = job.kind == LOCK || job.kind == JOIN ? host.context
                            : job.kind == UNLOCK                 ? job.pool->chunks[job.chunk].page_locked_in
                                                                 : NULL;
        host.working_in = context;
        gs_mutex_unlock(&host.lock);
        if (job.kind == UNMAP)
            gs_host_pool_destroy(job.pool);
        else if (job.kind == JOIN)
            join(&job, context);
        else
            do_job(&job, context);
        gs_mutex_lock(&host.lock);
        host.working_in = NULL;
        pthread_cond_broadcast(&host.changed);
        gs_mutex_unlock(&host.lock);
        gs_awake_leave(called);
        pause_if_computing();
        gs_mutex_lock(&host.lock);
    }
    return NULL;
}

/* Without the thread, memory stays as it is: page-locked, and owned by this process. */
static void wake_thread(void)
{
    if (host.started) {
        pthread_cond_broadcast(&host.changed);
        return;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&host.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_t thread;
    host.started = gs_population_start_thread(&thread, work_ahead, NULL);
    if (host.started)
        pthread_detach(thread);
}

void gs_host_prepare(uint64_t bytes, CUcontext context)
{
    gs_mutex_lock(&host.lock);
    host.wanted = (bytes + GPUSHARE_POOL_CHUNK - 1) / GPUSHARE_POOL_CHUNK;
    host.refused = false;
    if (context != NULL)
        host.context = context;
    if (bytes == 0 ? host.pools != NULL : present_pool_locked() != NULL)
        wake_thread();
    gs_mutex_unlock(&host.lock);
}

void gs_host_context_ends(CUcontext context)
{
    gs_mutex_lock(&host.lock);
    if (host.context == context)
        host.context = NULL;
    while (host.working_in == context && context != NULL)
        wait_locked(0);
    for (struct gs_host_pool *pool = host.pools; pool != NULL; pool = pool->next) {
        for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
            if (pool->chunks[i].page_locked_in != context)
                continue;
            /* Fails if the lock is gone already. */
            GS_REAL(cuMemHostUnregister)(gs_host_pool_address(pool, i));
            record_page_lock_locked(pool, i, NULL);
        }
    }
    gs_mutex_unlock(&host.lock);
}

/* Page-locks the chunk unless it is page-locked. False: it was not. */
static bool stays_page_locked(struct gs_host_pool *pool, uint32_t i)
{
    CUresult result = GS_REAL(cuCtxSetCurrent)(pool->chunks[i].page_locked_in);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemHostRegister_v2)(gs_host_pool_address(pool, i), GPUSHARE_POOL_CHUNK,
                                               CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        record_page_lock_locked(pool, i, NULL);
    return result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

void gs_host_restored(void)
{
    unsigned lost = 0;
    CUcontext before = NULL;
    GS_REAL(cuCtxGetCurrent)(&before);
    gs_mutex_lock(&host.lock);
    for (struct gs_host_pool *pool = host.pools; pool != NULL; pool = pool->next) {
        for (uint32_t i = 0; pool->page_locked != 0 && i < pool->count; i++) {
            if (pool->chunks[i].page_locked_in != NULL && !stays_page_locked(pool, i))
                lost++;
        }
    }
    if (host.pools != NULL)
        wake_thread();
    gs_mutex_unlock(&host.lock);
    GS_REAL(cuCtxSetCurrent)(before);
    if (lost != 0)
        gs_debug("the driver has lost %u page-locks; they are made again", lost);
}

void gs_host_after_fork(void)
{
    /* The child inherited neither the chunks nor the tables (MADV_DONTFORK), nor the thread. */
    gs_mutex_after_fork(&host.lock);
    host.pools = NULL;
    host.context = host.working_in = NULL;
    host.wanted = host.taking = 0;
    host.started = false;
    host.bytes = host.page_locked_late = 0;
}
