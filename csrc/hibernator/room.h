/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_HIBERNATOR_ROOM_H
#define GPUSHARE_HIBERNATOR_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/* The GPU memory that a process needs to be awake. */
struct hib_needs {
    uint8_t gpu[16];
    uint64_t bytes; /* 0: unknown */
};

/* Reads "UUID=BYTES", the UUID as 32 hexadecimal digits. */
bool hib_read_needs(const char *text, struct hib_needs *needs);

/*
 * Whether the GPU has room now, according to NVML; true if NVML cannot tell. *left: the free memory, if it is too
 * little. If a driver runs out of memory during a restore, it may never be able to restore that process
 * (NVIDIA/cuda-checkpoint issue 44). So there must be room before the restore is requested.
 */
bool hib_has_room(const struct hib_needs *needs, uint64_t *left);

#endif
