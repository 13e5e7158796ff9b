/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of contexts, for the hooks on context functions. Queries by other modules are in context_list.h. */
#ifndef GPUSHARE_GATE_CONTEXTS_H
#define GPUSHARE_GATE_CONTEXTS_H

#include "driver.h"

#include <stdbool.h>

/* False: out of memory. *takes: the context is charged now, because it was admitted and was not charged before. */
bool gs_context_add(CUcontext handle, CUdevice device, bool primary, bool admitted, bool *takes);

/* Returns whether the context was charged, and if so sets *device. */
bool gs_context_remove(CUcontext handle, CUdevice *device);

/* cuCtxDestroy destroys neither a primary context nor a green one: they keep everything. */
bool gs_context_can_be_destroyed(CUcontext handle);

/* gs_context_detach returns whether the context ends. */
void gs_context_attach(CUcontext handle);
bool gs_context_detach(CUcontext handle);

/*
 * Several threads may retain and release a device's primary context at once, and only the first has to be admitted. The
 * others wait until the outcome is known. If *first is true, or a context is returned, the change lasts until
 * gs_primary_end_change, whose result the waiting threads get.
 */
CUresult gs_primary_begin_retain(CUdevice device, bool *first);
/* Returns the context if this is its last release. */
CUcontext gs_primary_begin_release(CUdevice device);
/* Returns the context, if there is one. */
CUcontext gs_primary_begin_reset(CUdevice device);
void gs_primary_end_change(CUdevice device, CUresult result);

/* Called before and after the driver's reset. In between, no other thread uses the context. */
void gs_primary_is_reset(CUcontext handle);
void gs_primary_was_reset(CUcontext handle);

/* False: the green context is not known. */
bool gs_context_set_parent(CUcontext handle, CUcontext primary);

/* A green context of that primary context, or NULL. */
CUcontext gs_context_green_of(CUcontext primary);

/* Whether it is a green context, which keeps a primary context alive, and on which device. */
bool gs_context_is_green(CUcontext handle, CUdevice *device);

void gs_contexts_after_fork(void);

#endif
