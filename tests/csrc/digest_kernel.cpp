/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the source of the CUDA kernel (csrc/interposer/memory/digest.cu) on the host: a thread for each lane, one block
 * after the other. A library for Python.
 */
#include <cstddef>
#include <cstring>
#include <pthread.h>
#include <thread>
#include <vector>

struct uint4 {
    unsigned x, y, z, w;
};

static thread_local struct {
    unsigned x;
} threadIdx, blockIdx;

static pthread_barrier_t barrier;
static int any_of_block;

static void __syncthreads()
{
    pthread_barrier_wait(&barrier);
}

static int __syncthreads_or(int any)
{
    __syncthreads();
    any_of_block = 0;
    __syncthreads();
    if (any)
        __atomic_store_n(&any_of_block, 1, __ATOMIC_RELAXED);
    __syncthreads();
    return any_of_block;
}

static uint4 __ldcs(const uint4 *at)
{
    return *at;
}

static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

#define __constant__
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#include "interposer/memory/digest.cu"

/* `key` begins with both variables, in this order. */
extern "C" void run(const void *key, const void *data, size_t bytes, void *results)
{
    memcpy(gpushare_digest_vectors, key, sizeof gpushare_digest_vectors);
    memcpy(gpushare_digest_lanes, static_cast<const char *>(key) + sizeof gpushare_digest_vectors,
           sizeof gpushare_digest_lanes);
    pthread_barrier_init(&barrier, nullptr, LANES);
    unsigned blocks = static_cast<unsigned>((bytes + (2 << 20) - 1) >> 21) * SLICES;
    std::vector<std::thread> threads;
    for (unsigned lane = 0; lane < LANES; lane++)
        threads.emplace_back([=] {
            threadIdx.x = lane;
            for (unsigned block = 0; block < blocks; block++) {
                blockIdx.x = block;
                gpushare_digest(static_cast<const uint4 *>(data), bytes, static_cast<result *>(results));
                __syncthreads();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    pthread_barrier_destroy(&barrier);
}
