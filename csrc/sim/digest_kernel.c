/* SPDX-License-Identifier: BSD-3-Clause */
#include "digest_kernel.h"

#include "../digest.h"
#include "base/clock.h"
#include "counters.h"
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

const char sim_digest_name[] = "gpushare_digest";

struct arguments {
    const char *data;
    uint64_t bytes; /* of all units */
    struct gpushare_digest *results;
};

static const unsigned sizes[] = {8, 8, 8}, offsets[] = {0, 8, 16};

const struct gpushare_sim_kernel sim_digest_code = {
    .argument_count = 3, .argument_sizes = sizes, .argument_offsets = offsets};

bool sim_digest_is_image(const void *image)
{
    static const char mark[] = "// gpushare-digest 1,";
    return strncmp(image, mark, sizeof mark - 1) == 0;
}

struct gpushare_digest_key *sim_digest_key_new(void)
{
    return calloc(1, sizeof(struct gpushare_digest_key));
}

void *sim_digest_variable(struct gpushare_digest_key *key, const char *name, size_t *size)
{
    bool vectors = strcmp(name, "gpushare_digest_vectors") == 0;
    if (!vectors && strcmp(name, "gpushare_digest_lanes") != 0)
        return NULL;
    *size = vectors ? sizeof key->vectors : sizeof key->lanes;
    return vectors ? (void *)key->vectors : (void *)key->lanes;
}

bool sim_digest_has(const struct gpushare_digest_key *key, const void *address)
{
    return key != NULL && (uintptr_t)address - (uintptr_t)key < sizeof *key;
}

uint64_t sim_digest_duration(const void *packed)
{
    struct arguments arguments;
    memcpy(&arguments, packed, sizeof arguments);
    return sim_duration(arguments.bytes, sim_config.memory_bandwidth);
}

#ifdef __SSE2__
/*
 * The same as gpushare_digest_sum, about twice as fast: the time of tests matters. A product of two words is that of
 * the lower and the upper half of a number of 64 bits.
 */
static bool sum(const struct gpushare_digest_key *key, const char *data, size_t bytes, gpushare_digest_sums sums)
{
    __m128i halves[GPUSHARE_DIGEST_LANES][GPUSHARE_DIGEST_PASSES], any = _mm_setzero_si128();
    memset(halves, 0, sizeof halves);
    size_t row = GPUSHARE_DIGEST_LANES * GPUSHARE_DIGEST_VECTOR;
    for (size_t start = 0; start < bytes; start += row) {
        __m128i keys[GPUSHARE_DIGEST_PASSES];
        memcpy(keys, key->vectors[start / row], sizeof keys);
        size_t count = (bytes - start < row ? bytes - start : row) / GPUSHARE_DIGEST_VECTOR;
        for (size_t lane = 0; lane < count; lane++) {
            __m128i m = _mm_loadu_si128((const __m128i *)(const void *)(data + start) + lane);
            any = _mm_or_si128(any, m);
            for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++) {
                __m128i words = _mm_add_epi32(m, keys[pass]);
                __m128i products = _mm_mul_epu32(words, _mm_srli_epi64(words, 32));
                halves[lane][pass] = _mm_add_epi64(halves[lane][pass], products);
            }
        }
    }
    for (unsigned lane = 0; lane < GPUSHARE_DIGEST_LANES; lane++) {
        for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++) {
            uint64_t both[2];
            memcpy(both, &halves[lane][pass], sizeof both);
            sums[lane][pass] = both[0] + both[1];
        }
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) != 0xffff;
}
#else
#define sum gpushare_digest_sum
#endif

/* The fault that a test of the tests asks for: one byte of each unit has no influence. */
static bool sum_blindly(const struct gpushare_digest_key *key, unsigned slice, const char *data, size_t bytes,
                        gpushare_digest_sums sums)
{
    uint64_t ignored = sim_config.digest_ignores - (uint64_t)slice * GPUSHARE_DIGEST_SLICE;
    if (ignored >= bytes)
        return sum(key, data, bytes, sums);
    char *copy = malloc(bytes);
    if (copy == NULL)
        abort();
    memcpy(copy, data, bytes);
    copy[ignored] = 0;
    bool any = sum(key, copy, bytes, sums);
    free(copy);
    return any;
}

void sim_digest_run(const struct gpushare_digest_key *key, const void *packed, unsigned blocks)
{
    struct arguments arguments;
    memcpy(&arguments, packed, sizeof arguments);
    for (unsigned block = 0; block < blocks; block++) {
        uint64_t start = (uint64_t)block * GPUSHARE_DIGEST_SLICE;
        uint64_t rest = start < arguments.bytes ? arguments.bytes - start : 0;
        unsigned slice = block % GPUSHARE_DIGEST_SLICES;
        gpushare_digest_sums sums;
        bool any = sum_blindly(key, slice, arguments.data + start,
                               rest < GPUSHARE_DIGEST_SLICE ? rest : GPUSHARE_DIGEST_SLICE, sums);
        gpushare_digest_combine(key, slice, sums, any, &arguments.results[block]);
    }
    __atomic_add_fetch(&sim_counters_now.hashed, arguments.bytes, __ATOMIC_RELAXED);
}
