/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The digest of csrc/digest.h on the GPU. tools/compile_digest.py makes digest.ptx of this file.
 *
 * A block computes what one slice of a unit contributes, and a thread is one lane. The lane's loads are ahead of its
 * arithmetic by eight vectors, because only many loads in flight use all the bandwidth of the GPU's memory. That needs
 * more registers than the compiler would use if as many blocks as possible had to run on a multiprocessor.
 */
enum { SLICES = 4, LANES = 256, STEPS = 128, PASSES = 4, AHEAD = 8 };

typedef unsigned int word;
typedef unsigned long long number;

#define PRIME ((1ull << 61) - 1)

struct result {
    number words[PASSES];
    number any;
};

/* The parts of struct gpushare_digest_key, written by the interposer. */
extern "C" {
__constant__ uint4 gpushare_digest_vectors[STEPS + PASSES - 1];
__device__ number gpushare_digest_lanes[SLICES][PASSES][2][LANES];
}

struct sums {
    number of[PASSES];
    word any;
};

static __device__ __forceinline__ number nh(uint4 m, uint4 k)
{
    return (number)(m.x + k.x) * (m.y + k.y) + (number)(m.z + k.z) * (m.w + k.w);
}

static __device__ __forceinline__ void add_vector(struct sums *sums, uint4 m, unsigned step)
{
    for (unsigned pass = 0; pass < PASSES; pass++)
        sums->of[pass] += nh(m, gpushare_digest_vectors[step + pass]);
    sums->any |= m.x | m.y | m.z | m.w;
}

static __device__ __forceinline__ number add(number a, number b)
{
    number sum = a + b;
    return sum >= PRIME ? sum - PRIME : sum;
}

static __device__ __forceinline__ number multiply(number key, word value)
{
    number low = key * value, high = __umul64hi(key, value);
    return add(low & PRIME, high << 3 | low >> 61);
}

/* `bytes` is the size of all units: 2 MiB each, except for the last one. */
extern "C" __global__ void __launch_bounds__(LANES, 2)
    gpushare_digest(const uint4 *data, number bytes, struct result *results)
{
    __shared__ number words[PASSES][LANES];
    const number start = (number)blockIdx.x * (STEPS * LANES), vectors = bytes / sizeof(uint4);
    const unsigned lane = threadIdx.x, slice = blockIdx.x % SLICES;
    const uint4 *mine = data + start + lane;
    struct sums sums = {{0, 0, 0, 0}, 0};
    if (start + STEPS * LANES <= vectors) {
        for (unsigned step = 0; step < STEPS; step += AHEAD) {
            uint4 m[AHEAD];
#pragma unroll
            for (unsigned i = 0; i < AHEAD; i++)
                m[i] = __ldcs(mine + (step + i) * LANES);
#pragma unroll
            for (unsigned i = 0; i < AHEAD; i++)
                add_vector(&sums, m[i], step + i);
        }
    } else {
        for (unsigned step = 0; start + step * LANES + lane < vectors; step++)
            add_vector(&sums, mine[step * LANES], step);
    }
    for (unsigned pass = 0; pass < PASSES; pass++)
        words[pass][lane] = add(multiply(gpushare_digest_lanes[slice][pass][0][lane], (word)sums.of[pass]),
                                multiply(gpushare_digest_lanes[slice][pass][1][lane], (word)(sums.of[pass] >> 32)));
    const int any = __syncthreads_or(sums.any != 0);
#pragma unroll 1
    for (unsigned half = LANES / 2; half != 0; half /= 2) {
        if (lane < half)
            for (unsigned pass = 0; pass < PASSES; pass++)
                words[pass][lane] = add(words[pass][lane], words[pass][lane + half]);
        __syncthreads();
    }
    if (lane < PASSES)
        results[blockIdx.x].words[lane] = words[lane][0];
    if (lane == PASSES)
        results[blockIdx.x].any = any;
}
