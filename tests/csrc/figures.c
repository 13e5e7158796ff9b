/* SPDX-License-Identifier: BSD-3-Clause */
/* Stands for libgpushare.so where the NVML shim asks it: the figures come from FOOTPRINT and ROOM. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);

int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total)
{
    static const uint8_t known[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                      0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
    const char *text = getenv("FOOTPRINT");
    if (text == NULL || memcmp(uuid, known, sizeof(known)) != 0)
        return 0;
    *footprint = strtoull(text, NULL, 10);
    *total = strtoull(getenv("ROOM"), NULL, 10);
    return 1;
}
