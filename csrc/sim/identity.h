/* SPDX-License-Identifier: BSD-3-Clause */
/* What the simulated driver and the simulated NVML must both report about a device. */
#ifndef SIM_IDENTITY_H
#define SIM_IDENTITY_H

#include "base/config.h"

#include <stdint.h>
#include <stdio.h>

#define SIM_FIRST_BUS 1u

/* The UUID is the same for the same name and index, in every process and after every restart. */
static inline void sim_identity_uuid(const char *name, unsigned index, unsigned char uuid[16])
{
    uint64_t hash[2] = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4)};
    for (unsigned half = 0; half < 2; half++) {
        for (const char *c = name; *c != '\0'; c++)
            hash[half] = (hash[half] ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        hash[half] = (hash[half] ^ (index + 1)) * UINT64_C(0x100000001b3);
        for (unsigned i = 0; i < 8; i++)
            uuid[half * 8 + i] = (unsigned char)(hash[half] >> (8 * i));
    }
    uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x80); /* RFC 9562, version 8: a custom UUID */
    uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}

static inline void sim_unit_uuid(const char *name, const struct sim_unit *unit, unsigned char uuid[16])
{
    sim_identity_uuid(name, unit->slice < 0 ? unit->gpu : 256 * (unit->gpu + 1) + (unsigned)unit->slice, uuid);
}

/*
 * The form of NVML and CUDA_VISIBLE_DEVICES: "GPU-8-4-4-4-12", or "MIG-..." for a slice; `text` has room for 64 bytes.
 */
static inline void sim_identity_text(const unsigned char uuid[16], bool slice, char *text)
{
    int used = snprintf(text, 64, slice ? "MIG-" : "GPU-");
    for (unsigned i = 0; i < 16; i++)
        used += snprintf(text + used, 64 - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                         uuid[i]);
}

#endif
