/* SPDX-License-Identifier: BSD-3-Clause */
/* A library with the digest's definition (csrc/digest.h), for Python. */
#include "digest.h"

void derive(struct gpushare_digest_key *key, const uint8_t *seed)
{
    gpushare_digest_derive(key, seed);
}

size_t key_bytes(void)
{
    return sizeof(struct gpushare_digest_key);
}

void chacha20(const uint8_t *key, uint32_t counter, uint32_t *block)
{
    gpushare_chacha20(key, counter, block);
}

void digest(const struct gpushare_digest_key *key, const void *data, size_t bytes, uint64_t *words)
{
    struct gpushare_digest digest;
    gpushare_digest_unit(key, data, bytes, &digest);
    memcpy(words, &digest, sizeof digest);
}
