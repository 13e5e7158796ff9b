/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which backends (block.h) this process's memory has, and whether it may hold more than the GPU has. backends/choose.h
 * chooses.
 */
#ifndef GPUSHARE_MEMORY_BACKING_H
#define GPUSHARE_MEMORY_BACKING_H

#include <stdbool.h>

struct gs_backend;

struct gs_backing {
    const struct gs_backend *usual; /* NULL: none, memory stays on the GPU (GPUSHARE_BACKEND=plain) */
    const struct gs_backend *swap;  /* of pools, whatever the usual one is */
    const struct gs_backend *managed;
};

/* Before the process is attached. */
void gs_backing_set(const struct gs_backing *chosen);
const struct gs_backing *gs_backing(void);

/* Of what is allocated now. */
const struct gs_backend *gs_backing_of_new(void);

/* GPUSHARE_FORBID_MANAGED=1. */
bool gs_backing_managed_forbidden(void);

/*
 * Whether what is allocated from now on may be more than the GPU has: it is managed memory then, and what has no room
 * is used from the host. False, and one sentence in *why, if that is not possible. Also before the first cuInit.
 */
bool gs_memory_oversubscribe(bool on, const char **why);
bool gs_memory_oversubscribes(void);

/* Whether it ever did: then more may be held than the GPU has. */
bool gs_memory_oversubscribed(void);

/* Whether there is a backend that can move memory at all (GPUSHARE_BACKEND=plain has none). */
bool gs_memory_can_move(void);

#endif
