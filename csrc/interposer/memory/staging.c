/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/staging.h"

#include "base/lock.h"
#include "loader/real.h"
#include "memory/population.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

enum { SEGMENTS = 16, SEGMENT_SLOTS = 2, SLOTS = SEGMENTS * SEGMENT_SLOTS, MOST_JOBS = 256, MOST_THREADS = 16 };

static const size_t slot_bytes = 8 * MIB, segment_bytes = SEGMENT_SLOTS * 8 * MIB;
/* For evictions, whose order is not known here. */
static const uint64_t evicted_bytes = 128 * MIB;
/* Between two looks at a value that the GPU writes. A slot takes the GPU 150 us. */
static const useconds_t look_again_us = 20;

/*
 * How often a slot was used, in memory that the GPU reads and writes. A use has the number `turn`, from 1 on; it is
 * over when both sides have finished it.
 */
struct turns {
    uint32_t by_host, by_gpu;
    uint32_t pad[14];
};

struct job {
    enum { MAKE, FILL, EMPTY } kind;
    void *memory;
    size_t bytes;
    unsigned slot; /* MAKE: segment */
    uint32_t turn;
    const void *owner;
    bool cancelled; /* atomic */
    bool done;
};

static struct {
    struct gs_mutex lock;
    pthread_cond_t asked, changed;
    enum { ABSENT, PRESENT, ENDING } state;
    bool impossible;
    bool queuing;      /* the helper is inside; no part of the ring is freed */
    CUcontext context; /* of all copies */
    struct turns *turns;
    char *memory; /* of all segments, unless the driver allocates them */
    struct segment {
        char *memory;
        bool made, allocated; /* by the driver */
    } segments[SEGMENTS];
    unsigned segment_count, most_segments;
    uint32_t turn[SLOTS];      /* last turn that was queued */
    uint32_t unflushed[SLOTS]; /* last EMPTY turn that the stream does not wait for yet, or 0 */
    unsigned slot;             /* the next one */
    /* All jobs from `first` on exist; those from `next` on are not begun. They are numbered through. */
    struct job jobs[MOST_JOBS];
    uint64_t first, next, end;
    pthread_t threads[MOST_THREADS];
    unsigned thread_count;
} staging = {
    .lock = GS_MUTEX(GS_RANK_STAGING),
    .asked = PTHREAD_COND_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

static struct job *job_of(uint64_t number)
{
    return &staging.jobs[number % MOST_JOBS];
}

static char *slot_memory(unsigned slot)
{
    return staging.segments[slot / SEGMENT_SLOTS].memory + slot % SEGMENT_SLOTS * slot_bytes;
}

static bool has_come(const uint32_t *value, uint32_t turn)
{
    return (int32_t)(__atomic_load_n(value, __ATOMIC_ACQUIRE) - turn) >= 0;
}

/* --- Threads --- */

/* False: the job was cancelled. */
static bool await(const struct job *job, const uint32_t *value, uint32_t turn)
{
    while (!has_come(value, turn)) {
        if (__atomic_load_n(&job->cancelled, __ATOMIC_RELAXED))
            return false;
        usleep(look_again_us);
    }
    return !__atomic_load_n(&job->cancelled, __ATOMIC_RELAXED);
}

static void carry_out(struct job *job)
{
    if (job->kind == MAKE) {
        char *segment = staging.memory + job->slot * segment_bytes;
        for (size_t offset = 0; offset < segment_bytes; offset += 4096)
            *(volatile char *)(segment + offset) = 0;
        return;
    }
    struct turns *turns = &staging.turns[job->slot];
    if (job->kind == FILL) {
        if (await(job, &turns->by_gpu, job->turn - 1) && await(job, &turns->by_host, job->turn - 1))
            memcpy(slot_memory(job->slot), job->memory, job->bytes);
    } else if (await(job, &turns->by_gpu, job->turn)) {
        memcpy(job->memory, slot_memory(job->slot), job->bytes);
    }
    if (__atomic_load_n(&job->cancelled, __ATOMIC_RELAXED) && !has_come(&turns->by_gpu, job->turn))
        __atomic_store_n(&turns->by_gpu, job->turn, __ATOMIC_RELEASE);
    if (!has_come(&turns->by_host, job->turn))
        __atomic_store_n(&turns->by_host, job->turn, __ATOMIC_RELEASE);
}

static void *copy(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare-copies");
    gs_mutex_lock(&staging.lock);
    for (;;) {
        if (staging.next == staging.end) {
            if (staging.state == ENDING)
                break;
            gs_cond_wait(&staging.asked, &staging.lock);
            continue;
        }
        struct job *job = job_of(staging.next++);
        gs_mutex_unlock(&staging.lock);
        carry_out(job);
        gs_mutex_lock(&staging.lock);
        job->done = true;
        if (job->kind == MAKE)
            staging.segments[job->slot].made = true;
        while (staging.first != staging.next && job_of(staging.first)->done)
            staging.first++;
        pthread_cond_broadcast(&staging.changed);
    }
    gs_mutex_unlock(&staging.lock);
    return NULL;
}

/* The lock is released while there are too many. */
static void add_job_locked(const struct job *job)
{
    while (staging.end - staging.first == MOST_JOBS)
        gs_cond_wait(&staging.changed, &staging.lock);
    *job_of(staging.end++) = *job;
    pthread_cond_signal(&staging.asked);
}

/* --- The ring --- */

/* Page-locks one more segment, while `queuing`. */
static bool add_segment(void)
{
    struct segment *segment = &staging.segments[staging.segment_count];
    char *memory = staging.memory + staging.segment_count * segment_bytes;
    gs_mutex_lock(&staging.lock);
    while (!segment->made)
        gs_cond_wait(&staging.changed, &staging.lock);
    gs_mutex_unlock(&staging.lock);
    CUresult result = GS_REAL(cuMemHostRegister_v2)(memory, segment_bytes, CU_MEMHOSTREGISTER_PORTABLE);
    segment->allocated = result != CUDA_SUCCESS;
    segment->memory = memory;
    if (segment->allocated)
        result = GS_REAL(cuMemHostAlloc)((void **)&segment->memory, segment_bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (result != CUDA_SUCCESS)
        return false;
    staging.segment_count++;
    return true;
}

static void free_ring_locked(void)
{
    for (unsigned s = 0; s < staging.segment_count; s++) {
        if (staging.segments[s].allocated)
            GS_REAL(cuMemFreeHost)(staging.segments[s].memory);
        else
            GS_REAL(cuMemHostUnregister)(staging.segments[s].memory);
    }
    GS_REAL(cuMemFreeHost)(staging.turns);
    munmap(staging.memory, SEGMENTS * segment_bytes);
    memset(staging.segments, 0, sizeof(staging.segments));
    memset(staging.turn, 0, sizeof(staging.turn));
    memset(staging.unflushed, 0, sizeof(staging.unflushed));
    staging.segment_count = staging.slot = 0;
    staging.first = staging.next = staging.end = 0;
}

/* Ends the threads once they have done all jobs, and frees the ring. The lock is released meanwhile. */
static void remove_ring_locked(void)
{
    staging.state = ENDING;
    while (staging.queuing)
        gs_cond_wait(&staging.changed, &staging.lock);
    pthread_cond_broadcast(&staging.asked);
    gs_mutex_unlock(&staging.lock);
    for (unsigned t = 0; t < staging.thread_count; t++)
        pthread_join(staging.threads[t], NULL);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        while (!has_come(&staging.turns[slot].by_gpu, staging.turn[slot]))
            usleep(look_again_us);
    gs_mutex_lock(&staging.lock);
    staging.thread_count = 0;
    free_ring_locked();
    staging.state = ABSENT;
    pthread_cond_broadcast(&staging.changed);
}

static void *map_ring(void)
{
    void *memory = mmap(NULL, SEGMENTS * segment_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, SEGMENTS * segment_bytes, MADV_HUGEPAGE);
    madvise(memory, SEGMENTS * segment_bytes, MADV_DONTFORK);
    madvise(memory, SEGMENTS * segment_bytes, MADV_DONTDUMP);
    return memory;
}

/* Without the first segment, there is no ring. */
static bool make_ring_locked(uint64_t bytes)
{
    unsigned most = gs_population_processors();
    if (!gs_real_has(GS_FN_cuStreamWaitValue32_v2) || !gs_real_has(GS_FN_cuStreamWriteValue32_v2) ||
        GS_REAL(cuMemHostAlloc)((void **)&staging.turns, SLOTS * sizeof(*staging.turns), CU_MEMHOSTALLOC_PORTABLE) !=
            CUDA_SUCCESS)
        return false;
    memset(staging.turns, 0, SLOTS * sizeof(*staging.turns));
    staging.memory = map_ring();
    if (staging.memory == NULL) {
        GS_REAL(cuMemFreeHost)(staging.turns);
        return false;
    }
    staging.state = PRESENT;
    while (staging.thread_count < most && staging.thread_count < MOST_THREADS &&
           gs_population_start_thread(&staging.threads[staging.thread_count], copy, NULL))
        staging.thread_count++;
    staging.most_segments = bytes / segment_bytes < SEGMENTS ? (unsigned)(bytes / segment_bytes) + 1 : SEGMENTS;
    bool made = staging.thread_count != 0;
    for (unsigned s = 0; s < staging.most_segments && made; s++)
        add_job_locked(&(struct job){.kind = MAKE, .slot = s});
    staging.queuing = true;
    gs_mutex_unlock(&staging.lock);
    made = made && add_segment();
    gs_mutex_lock(&staging.lock);
    staging.queuing = false;
    pthread_cond_broadcast(&staging.changed);
    if (!made)
        remove_ring_locked();
    return made;
}

bool gs_staging_begin(uint64_t bytes)
{
    CUcontext context = NULL;
    GS_REAL(cuCtxGetCurrent)(&context);
    gs_mutex_lock(&staging.lock);
    while (staging.state == ENDING)
        gs_cond_wait(&staging.changed, &staging.lock);
    if (staging.state == ABSENT && context != NULL && !staging.impossible) {
        staging.context = context;
        staging.impossible = !make_ring_locked(bytes);
    }
    bool present = staging.state == PRESENT && staging.context == context;
    gs_mutex_unlock(&staging.lock);
    return present;
}

static bool is_ready_locked(void)
{
    CUcontext context = NULL;
    GS_REAL(cuCtxGetCurrent)(&context);
    return staging.state == PRESENT && staging.context == context;
}

bool gs_staging_is_ready(void)
{
    gs_mutex_lock(&staging.lock);
    bool ready = is_ready_locked();
    gs_mutex_unlock(&staging.lock);
    return ready;
}

bool gs_staging_is_present(void)
{
    gs_mutex_lock(&staging.lock);
    bool present = staging.state == PRESENT;
    gs_mutex_unlock(&staging.lock);
    return present;
}

/* --- Copies --- */

static bool enter(void)
{
    gs_mutex_lock(&staging.lock);
    staging.queuing = is_ready_locked();
    bool entered = staging.queuing;
    gs_mutex_unlock(&staging.lock);
    return entered;
}

static void leave(void)
{
    gs_mutex_lock(&staging.lock);
    staging.queuing = false;
    pthread_cond_broadcast(&staging.changed);
    gs_mutex_unlock(&staging.lock);
}

static unsigned next_slot(void)
{
    if (staging.slot == staging.segment_count * SEGMENT_SLOTS) {
        if (staging.segment_count < staging.most_segments && !add_segment())
            staging.most_segments = staging.segment_count;
        if (staging.slot == staging.segment_count * SEGMENT_SLOTS)
            staging.slot = 0;
    }
    return staging.slot++;
}

static void add_job(const struct job *job)
{
    gs_mutex_lock(&staging.lock);
    add_job_locked(job);
    gs_mutex_unlock(&staging.lock);
}

static CUresult wait_for(CUstream stream, const uint32_t *value, uint32_t turn)
{
    return GS_REAL(cuStreamWaitValue32_v2)(stream, (CUdeviceptr)(uintptr_t)value, turn, CU_STREAM_WAIT_VALUE_GEQ);
}

static CUresult say(CUstream stream, const uint32_t *value, uint32_t turn)
{
    return GS_REAL(cuStreamWriteValue32_v2)(stream, (CUdeviceptr)(uintptr_t)value, turn, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* The GPU has not got all of this turn, and gets no more of it. */
static CUresult give_up(CUstream stream, unsigned slot, CUresult result)
{
    struct turns *turns = &staging.turns[slot];
    GS_REAL(cuStreamSynchronize)(stream);
    __atomic_store_n(&turns->by_gpu, staging.turn[slot], __ATOMIC_RELEASE);
    return result;
}

static CUresult fill_slot(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, const void *owner)
{
    unsigned slot = next_slot();
    struct turns *turns = &staging.turns[slot];
    uint32_t turn = ++staging.turn[slot];
    add_job(&(struct job){
        .kind = FILL, .memory = (void *)(uintptr_t)from, .bytes = bytes, .slot = slot, .turn = turn, .owner = owner});
    CUresult result = wait_for(stream, &turns->by_host, turn);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemcpyHtoDAsync_v2)(to, slot_memory(slot), bytes, stream);
    if (result == CUDA_SUCCESS)
        result = say(stream, &turns->by_gpu, turn);
    return result == CUDA_SUCCESS ? result : give_up(stream, slot, result);
}

static CUresult empty_slot(void *to, CUdeviceptr from, size_t bytes, CUstream stream, const void *owner)
{
    unsigned slot = next_slot();
    struct turns *turns = &staging.turns[slot];
    uint32_t turn = ++staging.turn[slot];
    CUresult result = wait_for(stream, &turns->by_host, turn - 1);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemcpyDtoHAsync_v2)(slot_memory(slot), from, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = say(stream, &turns->by_gpu, turn);
    if (result == CUDA_SUCCESS) {
        staging.unflushed[slot] = turn;
        add_job(&(struct job){.kind = EMPTY, .memory = to, .bytes = bytes, .slot = slot, .turn = turn, .owner = owner});
        return CUDA_SUCCESS;
    }
    give_up(stream, slot, result);
    add_job(&(struct job){.kind = EMPTY, .slot = slot, .turn = turn, .cancelled = true});
    return result;
}

CUresult gs_staging_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, const void *owner)
{
    if (!enter())
        return GS_REAL(cuMemcpyHtoDAsync_v2)(to, from, bytes, stream);
    CUresult result = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += slot_bytes)
        result = fill_slot(to + at, (const char *)from + at, bytes - at < slot_bytes ? bytes - at : slot_bytes, stream,
                           owner);
    leave();
    return result;
}

CUresult gs_staging_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream, const void *owner)
{
    if (!gs_staging_begin(evicted_bytes) || !enter())
        return GS_REAL(cuMemcpyDtoHAsync_v2)(to, from, bytes, stream);
    CUresult result = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += slot_bytes)
        result =
            empty_slot((char *)to + at, from + at, bytes - at < slot_bytes ? bytes - at : slot_bytes, stream, owner);
    leave();
    return result;
}

CUresult gs_staging_flush(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    /* A ring ends only once its copies have. */
    gs_mutex_lock(&staging.lock);
    while (staging.state == ENDING)
        gs_cond_wait(&staging.changed, &staging.lock);
    gs_mutex_unlock(&staging.lock);
    if (!enter())
        return result; /* there was no ring for the copies */
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        if (staging.unflushed[slot] != 0 && result == CUDA_SUCCESS)
            result = wait_for(stream, &staging.turns[slot].by_host, staging.unflushed[slot]);
        staging.unflushed[slot] = 0;
    }
    leave();
    return result;
}

/* --- Ends --- */

/* Those of the owner, or all of them. */
static void cancel_locked(const void *owner)
{
    for (uint64_t number = staging.first; number != staging.end; number++)
        if (owner == NULL || job_of(number)->owner == owner)
            __atomic_store_n(&job_of(number)->cancelled, true, __ATOMIC_RELAXED);
}

static bool has_jobs_locked(const void *owner)
{
    bool found = false;
    for (uint64_t number = staging.first; number != staging.end; number++)
        found = found || (job_of(number)->owner == owner && !job_of(number)->done);
    return found;
}

void gs_staging_cancel(const void *owner)
{
    if (owner == NULL)
        return;
    gs_mutex_lock(&staging.lock);
    cancel_locked(owner);
    while (has_jobs_locked(owner))
        gs_cond_wait(&staging.changed, &staging.lock);
    gs_mutex_unlock(&staging.lock);
}

void gs_staging_context_ends(CUcontext context)
{
    gs_mutex_lock(&staging.lock);
    if (staging.state != ABSENT && staging.context == context) {
        /* If the context has failed, its GPU will not finish. Another thread may be removing the ring already. */
        cancel_locked(NULL);
        for (unsigned slot = 0; slot < SLOTS; slot++)
            __atomic_store_n(&staging.turns[slot].by_gpu, staging.turn[slot], __ATOMIC_RELEASE);
        if (staging.state == PRESENT)
            remove_ring_locked();
    }
    while (staging.state == ENDING)
        gs_cond_wait(&staging.changed, &staging.lock);
    gs_mutex_unlock(&staging.lock);
}

void gs_staging_end(void)
{
    CUcontext before = NULL;
    gs_mutex_lock(&staging.lock);
    if (staging.state == PRESENT) {
        GS_REAL(cuCtxGetCurrent)(&before);
        GS_REAL(cuCtxSetCurrent)(staging.context);
        remove_ring_locked();
        GS_REAL(cuCtxSetCurrent)(before);
    }
    while (staging.state == ENDING)
        gs_cond_wait(&staging.changed, &staging.lock);
    gs_mutex_unlock(&staging.lock);
}

void gs_staging_after_fork(void)
{
    gs_mutex_after_fork(&staging.lock);
    pthread_cond_init(&staging.asked, NULL);
    pthread_cond_init(&staging.changed, NULL);
    staging.state = ABSENT;
    staging.queuing = staging.impossible = false;
    memset(staging.segments, 0, sizeof(staging.segments));
    memset(staging.turn, 0, sizeof(staging.turn));
    memset(staging.unflushed, 0, sizeof(staging.unflushed));
    staging.segment_count = staging.slot = staging.thread_count = 0;
    staging.first = staging.next = staging.end = 0;
}
