/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The backends (block.h) of this process's memory, and whether the process may hold more than the GPU has. The backends
 * are chosen in backends/choose.h.
 */
#ifndef GPUSHARE_MEMORY_BACKING_H
#define GPUSHARE_MEMORY_BACKING_H

#include <stdbool.h>

struct gs_backend;

struct gs_backing {
    const struct gs_backend *usual; /* NULL: memory stays on the GPU (GPUSHARE_BACKEND=plain) */
    const struct gs_backend *swap;  /* for pools, whatever the usual backend is */
    const struct gs_backend *managed;
};

/* Called before the process is attached. */
void gs_backing_set(const struct gs_backing *chosen);
const struct gs_backing *gs_backing(void);

/* The backend of new allocations. */
const struct gs_backend *gs_backing_of_new(void);

/* Whether GPUSHARE_FORBID_MANAGED=1 is set. */
bool gs_backing_managed_forbidden(void);

/*
 * Sets whether new allocations may exceed the GPU's memory. If so, they are managed memory, and the GPU uses what has
 * no room from the host. Returns false, with a sentence in *why, if that is not possible. Can be called before the
 * first cuInit.
 */
bool gs_memory_oversubscribe(bool on, const char **why);
bool gs_memory_oversubscribes(void);

/* Whether oversubscription was ever on, so that the process may hold more than the GPU has. */
bool gs_memory_oversubscribed(void);

/* Whether there is a backend that can move memory at all (GPUSHARE_BACKEND=plain cannot). */
bool gs_memory_can_move(void);

#endif
