/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/hasher.h"

#include "base/lock.h"
#include "base/print.h"
#include "loader/real.h"
#include "memory/blocks.h"

#include <stdlib.h>
#include <string.h>

/* As many as pieces that may be queued at once (GS_LANE_FLIGHTS in lane.h). */
enum { JOBS = 128 };

/* PTX text, which the driver translates for its GPU. */
static const char image[] =
#include "digest_ptx.h"
    ;

struct gs_hasher_job {
    CUevent done;
    struct gpushare_digest *slices; /* page-locked, written by the GPU */
    size_t bytes;                   /* 0: no job */
};

/* What a context has of ours. The context's end destroys all of it. */
struct hasher {
    struct hasher *next;
    CUcontext context;
    bool refused; /* for good */
    bool reported;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    unsigned key; /* the one that the module has */
    struct gpushare_digest *slices;
    struct gs_hasher_job jobs[JOBS];
};

/* The list changes under gs_memory_lock. All else is used by the helper thread only. */
static struct hasher *hashers;
static struct gpushare_digest_key key;
static unsigned key_number;

void gs_hasher_set_seed(const uint8_t seed[GPUSHARE_DIGEST_SEED])
{
    gpushare_digest_derive(&key, seed);
    key_number++;
}

static struct hasher *hasher_of(CUcontext context)
{
    gs_mutex_lock(&gs_memory_lock);
    struct hasher *hasher = hashers;
    while (hasher != NULL && hasher->context != context)
        hasher = hasher->next;
    if (hasher == NULL && (hasher = calloc(1, sizeof(*hasher))) != NULL) {
        hasher->context = context;
        hasher->next = hashers;
        hashers = hasher;
    }
    gs_mutex_unlock(&gs_memory_lock);
    return hasher;
}

static void unload(struct hasher *hasher)
{
    for (unsigned i = 0; i < JOBS; i++)
        if (hasher->jobs[i].done != NULL)
            GS_REAL(cuEventDestroy_v2)(hasher->jobs[i].done);
    if (hasher->stream != NULL)
        GS_REAL(cuStreamDestroy_v2)(hasher->stream);
    if (hasher->slices != NULL)
        GS_REAL(cuMemFreeHost)(hasher->slices);
    if (hasher->module != NULL)
        GS_REAL(cuModuleUnload)(hasher->module);
    memset(hasher->jobs, 0, sizeof(hasher->jobs));
    hasher->module = NULL;
    hasher->stream = NULL;
    hasher->slices = NULL;
}

static CUresult load_parts(struct hasher *hasher)
{
    const size_t results = GS_HASHER_MOST_UNITS * GPUSHARE_DIGEST_SLICES;
    CUresult result = GS_REAL(cuModuleLoadData)(&hasher->module, image);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuModuleGetFunction)(&hasher->function, hasher->module, "gpushare_digest");
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuStreamCreate)(&hasher->stream, CU_STREAM_NON_BLOCKING);
    /* The GPU writes the results there itself, because a copy would have to wait for the copies of evicted data. */
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemHostAlloc)((void **)&hasher->slices, JOBS * results * sizeof(*hasher->slices),
                                         CU_MEMHOSTALLOC_DEVICEMAP);
    for (unsigned i = 0; i < JOBS && result == CUDA_SUCCESS; i++) {
        hasher->jobs[i].slices = hasher->slices + i * results;
        result = GS_REAL(cuEventCreate)(&hasher->jobs[i].done, CU_EVENT_DISABLE_TIMING);
    }
    return result;
}

static void report(struct hasher *hasher, CUresult result)
{
    if (!hasher->reported)
        gs_debug("evicted data is not hashed (CUDA error %d)", (int)result);
    hasher->reported = true;
}

static bool load(struct hasher *hasher)
{
    CUresult result = load_parts(hasher);
    if (result == CUDA_SUCCESS)
        return true;
    unload(hasher);
    /* When memory is evicted, the GPU may be full. Any other refusal would be repeated. */
    hasher->refused = result != CUDA_ERROR_OUT_OF_MEMORY;
    report(hasher, result);
    return false;
}

static CUresult write_variable(const struct hasher *hasher, const char *name, const void *value, size_t bytes)
{
    CUdeviceptr address;
    size_t size;
    CUresult result = GS_REAL(cuModuleGetGlobal_v2)(&address, &size, hasher->module, name);
    if (result == CUDA_SUCCESS && size != bytes)
        result = CUDA_ERROR_INVALID_IMAGE;
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemcpyHtoDAsync_v2)(address, value, bytes, hasher->stream);
    return result;
}

static CUresult write_key(struct hasher *hasher)
{
    if (hasher->key == key_number)
        return CUDA_SUCCESS;
    CUresult result = write_variable(hasher, "gpushare_digest_vectors", key.vectors, sizeof(key.vectors));
    if (result == CUDA_SUCCESS)
        result = write_variable(hasher, "gpushare_digest_lanes", key.lanes, sizeof(key.lanes));
    if (result == CUDA_SUCCESS)
        hasher->key = key_number;
    return result;
}

static CUresult launch(struct hasher *hasher, struct gs_hasher_job *job, CUdeviceptr address, size_t bytes)
{
    unsigned units = (unsigned)((bytes + GPUSHARE_DIGEST_UNIT - 1) / GPUSHARE_DIGEST_UNIT);
    unsigned long long size = bytes;
    void *arguments[] = {&address, &size, &job->slices};
    memset(job->slices, 0xff, units * GPUSHARE_DIGEST_SLICES * sizeof(*job->slices));
    CUresult result = write_key(hasher);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuLaunchKernel)(hasher->function, units * GPUSHARE_DIGEST_SLICES, 1, 1, GPUSHARE_DIGEST_LANES,
                                         1, 1, 0, hasher->stream, arguments, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuEventRecord)(job->done, hasher->stream);
    if (result != CUDA_SUCCESS)
        GS_REAL(cuStreamSynchronize)(hasher->stream);
    return result;
}

static struct gs_hasher_job *free_job(struct hasher *hasher)
{
    for (unsigned i = 0; i < JOBS; i++)
        if (hasher->jobs[i].bytes == 0)
            return &hasher->jobs[i];
    return NULL;
}

struct gs_hasher_job *gs_hasher_begin(CUcontext context, CUdeviceptr address, size_t bytes)
{
    if (key_number == 0 || bytes == 0 || bytes > (size_t)GS_HASHER_MOST_UNITS * GPUSHARE_DIGEST_UNIT ||
        bytes % GPUSHARE_DIGEST_VECTOR != 0 || address % GPUSHARE_DIGEST_VECTOR != 0)
        return NULL;
    struct hasher *hasher = hasher_of(context);
    if (hasher == NULL || hasher->refused || GS_REAL(cuCtxSetCurrent)(context) != CUDA_SUCCESS ||
        (hasher->module == NULL && !load(hasher)))
        return NULL;
    struct gs_hasher_job *job = free_job(hasher);
    if (job == NULL)
        return NULL;
    CUresult result = launch(hasher, job, address, bytes);
    if (result != CUDA_SUCCESS) {
        report(hasher, result);
        return NULL;
    }
    job->bytes = bytes;
    return job;
}

/* A digest of data that were not hashed would be worse than none. */
static bool complete(const struct gpushare_digest *slice)
{
    bool is = slice->any <= 1;
    for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++)
        is = is && slice->words[pass] < GPUSHARE_DIGEST_PRIME;
    return is;
}

CUresult gs_hasher_poll(struct gs_hasher_job *job, struct gpushare_digest *digests)
{
    CUresult result = GS_REAL(cuEventQuery)(job->done);
    if (result == CUDA_ERROR_NOT_READY)
        return result;
    const struct gpushare_digest *slices = job->slices;
    for (size_t rest = job->bytes; rest != 0 && result == CUDA_SUCCESS; slices += GPUSHARE_DIGEST_SLICES) {
        size_t unit = rest < GPUSHARE_DIGEST_UNIT ? rest : GPUSHARE_DIGEST_UNIT;
        for (unsigned slice = 0; slice < GPUSHARE_DIGEST_SLICES; slice++)
            if (!complete(&slices[slice]))
                result = CUDA_ERROR_UNKNOWN;
        gpushare_digest_join(&key, slices, unit, digests++);
        rest -= unit;
    }
    job->bytes = 0;
    return result;
}

void gs_hasher_context_ends(CUcontext context)
{
    gs_mutex_lock(&gs_memory_lock);
    struct hasher **link = &hashers;
    while (*link != NULL && (*link)->context != context)
        link = &(*link)->next;
    struct hasher *hasher = *link;
    if (hasher != NULL)
        *link = hasher->next;
    gs_mutex_unlock(&gs_memory_lock);
    free(hasher);
}

void gs_hasher_after_fork(void)
{
    hashers = NULL;
}
