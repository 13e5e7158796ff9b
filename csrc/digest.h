/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The digest of a unit of data: 2 MiB, or less at the end of an allocation. This is its definition. The GPU computes
 * the same in interposer/memory/digest.cu.
 *
 * A unit has four slices of 512 KiB. Each slice is read as vectors of four little-endian 32-bit words, and vector v
 * belongs to lane v % 256. The digest has two levels:
 *
 * 1. Each lane hashes its vectors with NH of UMAC (RFC 4418, section 5.2.2; Black, Halevi, Krawczyk, Krovetz and
 *    Rogaway, "UMAC: Fast and Secure Message Authentication", CRYPTO 1999). It does so in four passes. Each pass uses
 *    the same key one vector further (a Toeplitz construction), and has a sum of 64 bits as its result. Two different
 *    contents of a lane have equal sums in any given k passes with a probability of at most 2^-32k.
 * 2. Word p of the digest is a multilinear hash of the sums of pass p, in halves of 32 bits, and of the unit's length,
 *    modulo the prime 2^61 - 1. Each word has a key of its own. If any of the hashed values differ, the words are equal
 *    with a probability of at most 2^-60. (It would be 2^-61 if no key were zero more often than others.)
 *
 * Together: two different units have equal digests with a probability below 2^-127, whatever the data, as long as the
 * key is random and the data were chosen without knowledge of it. Digests with different keys cannot be compared. The
 * key is the stream of ChaCha20 (RFC 8439) for a random seed.
 */
#ifndef GPUSHARE_DIGEST_H
#define GPUSHARE_DIGEST_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define GPUSHARE_DIGEST_UNIT 2097152
#define GPUSHARE_DIGEST_SEED 32 /* bytes */
#define GPUSHARE_DIGEST_PRIME ((UINT64_C(1) << 61) - 1)

enum {
    GPUSHARE_DIGEST_SLICES = 4,
    GPUSHARE_DIGEST_LANES = 256,
    GPUSHARE_DIGEST_STEPS = 128, /* vectors of a lane */
    GPUSHARE_DIGEST_PASSES = 4,
    GPUSHARE_DIGEST_VECTOR = 16, /* bytes; each length must be a multiple of it */
    GPUSHARE_DIGEST_SLICE = GPUSHARE_DIGEST_UNIT / GPUSHARE_DIGEST_SLICES
};

/* The digest of a unit; also what one slice contributes to it. */
struct gpushare_digest {
    uint64_t words[GPUSHARE_DIGEST_PASSES]; /* each below the prime */
    uint64_t any;                           /* 0 if all bytes are zero, otherwise 1 */
};

struct gpushare_digest_key {
    uint32_t vectors[GPUSHARE_DIGEST_STEPS + GPUSHARE_DIGEST_PASSES - 1][4];
    /* For the lower and the upper half of each lane's sum. */
    uint64_t lanes[GPUSHARE_DIGEST_SLICES][GPUSHARE_DIGEST_PASSES][2][GPUSHARE_DIGEST_LANES];
    uint64_t length[GPUSHARE_DIGEST_PASSES];
};

static inline bool gpushare_digest_equal(const struct gpushare_digest *a, const struct gpushare_digest *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* --- The key --- */

static inline void gpushare_chacha20_quarter(uint32_t x[16], unsigned a, unsigned b, unsigned c, unsigned d)
{
#define GPUSHARE_CHACHA20_STEP(to, from, other, bits)                                                                  \
    do {                                                                                                               \
        x[to] += x[from];                                                                                              \
        x[other] ^= x[to];                                                                                             \
        x[other] = x[other] << (bits) | x[other] >> (32 - (bits));                                                     \
    } while (0)
    GPUSHARE_CHACHA20_STEP(a, b, d, 16);
    GPUSHARE_CHACHA20_STEP(c, d, b, 12);
    GPUSHARE_CHACHA20_STEP(a, b, d, 8);
    GPUSHARE_CHACHA20_STEP(c, d, b, 7);
#undef GPUSHARE_CHACHA20_STEP
}

/* Block `counter` of the stream, with a nonce of zero. */
static inline void gpushare_chacha20(const uint8_t key[GPUSHARE_DIGEST_SEED], uint32_t counter, uint32_t block[16])
{
    uint32_t first[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    memcpy(&first[4], key, GPUSHARE_DIGEST_SEED);
    first[12] = counter;
    memcpy(block, first, sizeof first);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 4; i++)
            gpushare_chacha20_quarter(block, i, 4 + i, 8 + i, 12 + i);
        for (unsigned i = 0; i < 4; i++)
            gpushare_chacha20_quarter(block, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
    }
    for (unsigned i = 0; i < 16; i++)
        block[i] += first[i];
}

/* The key is the stream in the order of the struct. Numbers of 64 bits lose their upper three. */
static inline void gpushare_digest_derive(struct gpushare_digest_key *key, const uint8_t seed[GPUSHARE_DIGEST_SEED])
{
    uint32_t block[16];
    for (size_t at = 0; at < sizeof *key; at += sizeof block) {
        gpushare_chacha20(seed, (uint32_t)(at / sizeof block), block);
        memcpy((char *)key + at, block, sizeof *key - at < sizeof block ? sizeof *key - at : sizeof block);
    }
    uint64_t *numbers = &key->lanes[0][0][0][0];
    for (size_t i = 0; i < sizeof key->lanes / sizeof *numbers; i++)
        numbers[i] &= GPUSHARE_DIGEST_PRIME;
    for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++)
        key->length[pass] &= GPUSHARE_DIGEST_PRIME;
}

/* --- The digest --- */

static inline uint64_t gpushare_digest_add(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;
    return sum >= GPUSHARE_DIGEST_PRIME ? sum - GPUSHARE_DIGEST_PRIME : sum;
}

static inline uint64_t gpushare_digest_multiply(uint64_t key, uint32_t value)
{
    unsigned __int128 product = (unsigned __int128)key * value;
    return gpushare_digest_add((uint64_t)product & GPUSHARE_DIGEST_PRIME, (uint64_t)(product >> 61));
}

/* The sums of each lane of a slice, in each pass. */
typedef uint64_t gpushare_digest_sums[GPUSHARE_DIGEST_LANES][GPUSHARE_DIGEST_PASSES];

/* The first level. Returns whether a byte of the slice is not zero. */
static inline bool gpushare_digest_sum(const struct gpushare_digest_key *key, const void *data, size_t bytes,
                                       gpushare_digest_sums sums)
{
    uint32_t any = 0;
    memset(sums, 0, sizeof(gpushare_digest_sums));
    for (size_t v = 0; v < bytes / GPUSHARE_DIGEST_VECTOR; v++) {
        uint64_t *sum = sums[v % GPUSHARE_DIGEST_LANES];
        uint32_t m[4];
        memcpy(m, (const char *)data + v * GPUSHARE_DIGEST_VECTOR, sizeof m);
        any |= m[0] | m[1] | m[2] | m[3];
        for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++) {
            const uint32_t *k = key->vectors[v / GPUSHARE_DIGEST_LANES + pass];
            sum[pass] += (uint64_t)(m[0] + k[0]) * (m[1] + k[1]) + (uint64_t)(m[2] + k[2]) * (m[3] + k[3]);
        }
    }
    return any != 0;
}

/* The second level: what a slice with these sums contributes to its unit's digest. */
static inline void gpushare_digest_combine(const struct gpushare_digest_key *key, unsigned slice,
                                           gpushare_digest_sums sums, bool any, struct gpushare_digest *digest)
{
    *digest = (struct gpushare_digest){.any = any};
    for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++) {
        const uint64_t (*keys)[GPUSHARE_DIGEST_LANES] = key->lanes[slice][pass];
        uint64_t *word = &digest->words[pass];
        for (unsigned lane = 0; lane < GPUSHARE_DIGEST_LANES; lane++) {
            uint64_t sum = sums[lane][pass];
            *word = gpushare_digest_add(*word, gpushare_digest_multiply(keys[0][lane], (uint32_t)sum));
            *word = gpushare_digest_add(*word, gpushare_digest_multiply(keys[1][lane], (uint32_t)(sum >> 32)));
        }
    }
}

/* Makes a unit's digest of what its slices contribute. */
static inline void gpushare_digest_join(const struct gpushare_digest_key *key,
                                        const struct gpushare_digest slices[GPUSHARE_DIGEST_SLICES], size_t bytes,
                                        struct gpushare_digest *digest)
{
    *digest = (struct gpushare_digest){.any = 0};
    for (unsigned pass = 0; pass < GPUSHARE_DIGEST_PASSES; pass++) {
        digest->words[pass] = gpushare_digest_multiply(key->length[pass], (uint32_t)bytes);
        for (unsigned slice = 0; slice < GPUSHARE_DIGEST_SLICES; slice++)
            digest->words[pass] = gpushare_digest_add(digest->words[pass], slices[slice].words[pass]);
    }
    for (unsigned slice = 0; slice < GPUSHARE_DIGEST_SLICES; slice++)
        digest->any |= slices[slice].any;
}

/* The digest of a unit: `bytes` is at most GPUSHARE_DIGEST_UNIT, and a multiple of GPUSHARE_DIGEST_VECTOR. */
static inline void gpushare_digest_unit(const struct gpushare_digest_key *key, const void *data, size_t bytes,
                                        struct gpushare_digest *digest)
{
    struct gpushare_digest slices[GPUSHARE_DIGEST_SLICES];
    for (unsigned slice = 0; slice < GPUSHARE_DIGEST_SLICES; slice++) {
        size_t start = (size_t)slice * GPUSHARE_DIGEST_SLICE, rest = start < bytes ? bytes - start : 0;
        gpushare_digest_sums sums;
        bool any = gpushare_digest_sum(key, (const char *)data + start,
                                       rest < GPUSHARE_DIGEST_SLICE ? rest : GPUSHARE_DIGEST_SLICE, sums);
        gpushare_digest_combine(key, slice, sums, any, &slices[slice]);
    }
    gpushare_digest_join(key, slices, bytes, digest);
}

#endif
