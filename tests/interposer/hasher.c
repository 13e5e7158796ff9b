/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hashes device memory of the simulated driver (csrc/interposer/memory/hasher.c), in the way that the argument names.
 * Ends with a line that says what is wrong, or with "done".
 */
#include "memory/hasher.h"
#include "loader/real.h"
#include "memory/blocks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIT ((size_t)GPUSHARE_DIGEST_UNIT)
enum { SHORT = 4112 };

/* What hasher.c needs of the rest of the interposer. */
void *gs_real_table[GS_FN_COUNT];
struct gs_mutex gs_memory_lock = GS_MUTEX(GS_RANK_MEMORY);

static CUcontext context;
static const uint8_t seeds[2][GPUSHARE_DIGEST_SEED] = {{1, 2, 3}, {4, 5, 6}};
static struct gpushare_digest_key key;

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void use_seed(unsigned number)
{
    gs_hasher_set_seed(seeds[number]);
    gpushare_digest_derive(&key, seeds[number]);
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    require(GS_REAL(cuMemAlloc_v2)(&address, bytes) == CUDA_SUCCESS, "no memory");
    return address;
}

/* Random bytes, and their copy on the device. */
static char *fill(CUdeviceptr address, size_t bytes)
{
    char *data = malloc(bytes);
    require(data != NULL, "no memory");
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)rand();
    require(GS_REAL(cuMemcpyHtoD_v2)(address, data, bytes) == CUDA_SUCCESS, "no copy");
    return data;
}

static CUresult wait_for(struct gs_hasher_job *job, struct gpushare_digest *digests)
{
    CUresult result;
    require(job != NULL, "it was not hashed");
    while ((result = gs_hasher_poll(job, digests)) == CUDA_ERROR_NOT_READY)
        usleep(100);
    return result;
}

static void expect(const struct gpushare_digest *digests, const char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += UNIT) {
        struct gpushare_digest expected;
        gpushare_digest_unit(&key, data + at, bytes - at < UNIT ? bytes - at : UNIT, &expected);
        require(gpushare_digest_equal(&expected, &digests[at / UNIT]), "another digest");
    }
}

static void hash_and_expect(CUcontext in, CUdeviceptr address, const char *data, size_t bytes)
{
    struct gpushare_digest digests[GS_HASHER_MOST_UNITS];
    require(wait_for(gs_hasher_begin(in, address, bytes), digests) == CUDA_SUCCESS, "hashing failed");
    expect(digests, data, bytes);
}

/* Several jobs at once, the last unit of which is short. */
static void compare(void)
{
    enum { JOBS = 3 };
    size_t bytes = 5 * UNIT + SHORT;
    CUdeviceptr address[JOBS];
    char *data[JOBS];
    struct gs_hasher_job *jobs[JOBS];
    for (unsigned i = 0; i < JOBS; i++) {
        address[i] = allocate(bytes);
        data[i] = fill(address[i], bytes);
    }
    require(gs_hasher_begin(context, address[0], bytes) == NULL, "it was hashed without a key");
    for (unsigned seed = 0; seed < 2; seed++) {
        struct gpushare_digest digests[GS_HASHER_MOST_UNITS];
        use_seed(seed);
        for (unsigned i = 0; i < JOBS; i++)
            jobs[i] = gs_hasher_begin(context, address[i], bytes);
        for (unsigned i = 0; i < JOBS; i++) {
            require(wait_for(jobs[i], digests) == CUDA_SUCCESS, "hashing failed");
            expect(digests, data[i], bytes);
        }
    }
}

static void zero(void)
{
    size_t bytes = 2 * UNIT;
    CUdeviceptr address = allocate(bytes);
    struct gpushare_digest digests[GS_HASHER_MOST_UNITS];
    use_seed(0);
    require(GS_REAL(cuMemsetD8_v2)(address, 0, bytes) == CUDA_SUCCESS, "no fill");
    require(GS_REAL(cuMemsetD8_v2)(address + bytes - 1, 1, 1) == CUDA_SUCCESS, "no fill");
    require(wait_for(gs_hasher_begin(context, address, bytes), digests) == CUDA_SUCCESS, "hashing failed");
    require(digests[0].any == 0, "zeros are something");
    require(digests[1].any == 1, "something is zeros");
}

static void limits(void)
{
    struct gs_hasher_job *jobs[256];
    struct gpushare_digest digests[GS_HASHER_MOST_UNITS];
    unsigned count = 0;
    CUdeviceptr address = allocate(64 * UNIT);
    use_seed(0);
    require(gs_hasher_begin(context, address, 64 * UNIT + 16) == NULL, "more than fits");
    require(gs_hasher_begin(context, address, 24) == NULL, "part of a vector");
    require(gs_hasher_begin(context, address + 8, 16) == NULL, "no vector's address");
    require(gs_hasher_begin(context, address, 0) == NULL, "nothing");
    while (count < 256 && (jobs[count] = gs_hasher_begin(context, address, UNIT)) != NULL)
        count++;
    require(count == 128, "not as many jobs as pieces may move at once");
    for (unsigned i = 0; i < count; i++)
        require(wait_for(jobs[i], digests) == CUDA_SUCCESS, "hashing failed");
    require(wait_for(gs_hasher_begin(context, address, 64 * UNIT), digests) == CUDA_SUCCESS, "no job is free again");
}

static void contexts(void)
{
    CUcontext other;
    use_seed(0);
    for (unsigned round = 0; round < 3; round++) {
        require(GS_REAL(cuCtxCreate_v2)(&other, 0, 0) == CUDA_SUCCESS, "no context");
        CUdeviceptr address = allocate(UNIT);
        char *data = fill(address, UNIT);
        hash_and_expect(other, address, data, UNIT);
        hash_and_expect(context, address, data, UNIT);
        gs_hasher_context_ends(other);
        require(GS_REAL(cuCtxDestroy_v2)(other) == CUDA_SUCCESS, "the context does not end");
        free(data);
    }
}

/* The helper thread, while the program captures. */
static void *hash_beside(void *argument)
{
    CUdeviceptr address = *(const CUdeviceptr *)argument;
    struct gpushare_digest digests[1];
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed);
    require(wait_for(gs_hasher_begin(context, address, UNIT), digests) == CUDA_SUCCESS, "hashing failed");
    return NULL;
}

static void capture(void)
{
    CUstream stream;
    CUgraph graph;
    pthread_t thread;
    CUdeviceptr address = allocate(UNIT);
    use_seed(0);
    require(GS_REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "no stream");
    require(GS_REAL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS, "no capture");
    require(pthread_create(&thread, NULL, hash_beside, &address) == 0, "no thread");
    pthread_join(thread, NULL);
    require(GS_REAL(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS, "the capture was invalidated");
}

/* The first attempt fails; the argument says whether the next one may succeed. */
static void attempts(bool again)
{
    struct gpushare_digest digests[1];
    CUdeviceptr address = allocate(UNIT);
    use_seed(0);
    require(gs_hasher_begin(context, address, UNIT) == NULL, "it was hashed");
    struct gs_hasher_job *job = gs_hasher_begin(context, address, UNIT);
    if (again)
        require(wait_for(job, digests) == CUDA_SUCCESS, "hashing failed");
    else
        require(job == NULL, "it was tried again");
}

static void refused(void)
{
    attempts(false);
}

static void refused_once(void)
{
    attempts(true);
}

/* The launch succeeds, but nothing is hashed. */
static void lost(void)
{
    struct gpushare_digest digests[1];
    CUdeviceptr address = allocate(UNIT);
    char *data = fill(address, UNIT);
    use_seed(0);
    require(wait_for(gs_hasher_begin(context, address, UNIT), digests) != CUDA_SUCCESS, "nothing has a digest");
    hash_and_expect(context, address, data, UNIT);
}

/* The driver does not report the failure, because another query has taken it. */
static CUresult query_without_error(CUevent event)
{
    CUresult (*query)(CUevent) = (CUresult (*)(CUevent))dlsym(RTLD_DEFAULT, "cuEventQuery");
    CUresult result = query(event);
    return result == CUDA_ERROR_NOT_READY ? result : CUDA_SUCCESS;
}

static void lost_silently(void)
{
    gs_real_table[GS_FN_cuEventQuery] = (void *)query_without_error;
    lost();
}

/* Prints whether two units that differ in byte 5000 have different digests. */
static void byte_5000(void)
{
    struct gpushare_digest digests[2];
    CUdeviceptr address = allocate(2 * UNIT);
    use_seed(0);
    require(GS_REAL(cuMemsetD8_v2)(address, 7, 2 * UNIT) == CUDA_SUCCESS, "no fill");
    require(GS_REAL(cuMemsetD8_v2)(address + 5000, 8, 1) == CUDA_SUCCESS, "no fill");
    require(wait_for(gs_hasher_begin(context, address, 2 * UNIT), digests) == CUDA_SUCCESS, "hashing failed");
    puts(gpushare_digest_equal(&digests[0], &digests[1]) ? "equal" : "different");
}

/* Prints how long 4 units take, in nanoseconds, and the counters of kernels and of hashed bytes. */
static void duration(void)
{
    struct {
        uint64_t before_kernels[5], kernels, after_kernels[10], hashed;
    } counters;
    void (*count)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "gpushare_sim_counters");
    struct gpushare_digest digests[4];
    struct timespec from, to;
    CUdeviceptr address = allocate(4 * UNIT);
    use_seed(0);
    clock_gettime(CLOCK_MONOTONIC, &from);
    require(wait_for(gs_hasher_begin(context, address, 4 * UNIT), digests) == CUDA_SUCCESS, "hashing failed");
    clock_gettime(CLOCK_MONOTONIC, &to);
    count(&counters, sizeof(counters));
    printf("%lld %llu %llu\n", (long long)(to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec),
           (unsigned long long)counters.kernels, (unsigned long long)counters.hashed);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*hash)(void);
    } ways[] = {{"compare", compare},           {"zero", zero},        {"limits", limits},
                {"contexts", contexts},         {"capture", capture},  {"refused", refused},
                {"refused-once", refused_once}, {"lost", lost},        {"lost-silently", lost_silently},
                {"byte-5000", byte_5000},       {"duration", duration}};
    for (size_t i = 0; i < GS_FN_COUNT; i++)
        gs_real_table[i] = dlsym(RTLD_DEFAULT, gs_real_names[i]);
    require(GS_REAL(cuInit)(0) == CUDA_SUCCESS, "no driver");
    require(GS_REAL(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS, "no context");
    require(GS_REAL(cuCtxSetCurrent)(context) == CUDA_SUCCESS, "no context");
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (count == 2 && strcmp(arguments[1], ways[i].name) == 0) {
            ways[i].hash();
            puts("done");
            return 0;
        }
    return 2;
}
