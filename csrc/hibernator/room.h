/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_HIBERNATOR_ROOM_H
#define GPUSHARE_HIBERNATOR_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/* What a process takes of a GPU to be awake. */
struct hib_needs {
    uint8_t gpu[16];
    uint64_t bytes; /* 0: not known */
};

/* Reads "UUID=BYTES", the UUID as 32 hexadecimal digits. */
bool hib_read_needs(const char *text, struct hib_needs *needs);

/*
 * Whether the GPU has room for it now, as NVML says; true where it cannot tell. *left: what is free, if that is too
 * little. A driver that has no room for a restore may never restore that process again (NVIDIA/cuda-checkpoint issue
 * 44), so it is not asked before.
 */
bool hib_has_room(const struct hib_needs *needs, uint64_t *left);

#endif
