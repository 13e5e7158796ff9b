/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of contexts, as the hooks on them see it. What others ask of contexts is in context_list.h. */
#ifndef GPUSHARE_GATE_CONTEXTS_H
#define GPUSHARE_GATE_CONTEXTS_H

#include "driver.h"

#include <stdbool.h>

/* False: out of memory. *takes: the context takes a charge, because it was admitted and has none yet. */
bool gs_context_add(CUcontext handle, CUdevice device, bool primary, bool admitted, bool *takes);

/* Returns whether it had a charge, and sets *device then. */
bool gs_context_remove(CUcontext handle, CUdevice *device);

/* The driver destroys no primary context and no green one by cuCtxDestroy: what they have stays. */
bool gs_context_can_be_destroyed(CUcontext handle);

/* Returns whether the context ends with it. */
void gs_context_attach(CUcontext handle);
bool gs_context_detach(CUcontext handle);

/*
 * Several threads may retain and release a device's primary context at once, and only the first has to be admitted:
 * these wait until the context is there or is not. Where *first is true, or a context is returned, it changes until
 * gs_primary_end_change; what became of that is what the others are told.
 */
CUresult gs_primary_begin_retain(CUdevice device, bool *first);
/* The context, if that is its last release. */
CUcontext gs_primary_begin_release(CUdevice device);
/* The context, if there is one. */
CUcontext gs_primary_begin_reset(CUdevice device);
void gs_primary_end_change(CUdevice device, CUresult result);

/* Around the driver's reset: from the first to the second, no other thread uses the context. */
void gs_primary_is_reset(CUcontext handle);
void gs_primary_was_reset(CUcontext handle);

/* False: the green context is not known. */
bool gs_context_set_parent(CUcontext handle, CUcontext primary);

/* A green context of that primary one, or NULL. */
CUcontext gs_context_green_of(CUcontext primary);

/* Whether it keeps a primary context alive, and of which device. */
bool gs_context_is_green(CUcontext handle, CUdevice *device);

void gs_contexts_after_fork(void);

#endif
