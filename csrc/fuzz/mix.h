/* SPDX-License-Identifier: BSD-3-Clause */
/* The operation of the kernel, for the kernel and for its model. */
#ifndef GPUSHARE_FUZZ_MIX_H
#define GPUSHARE_FUZZ_MIX_H

#include <stddef.h>

/* Reads and writes both. Two of these operations on the same bytes do not commute, whatever their keys. */
static inline void fuzz_mix(unsigned char *a, unsigned char *b, size_t count, unsigned key)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char sum = (unsigned char)(a[i] * 5u + b[i] + key + i);
        b[i] = (unsigned char)((b[i] ^ a[i]) * 3u + 1u);
        a[i] = sum;
    }
}

#endif
