/* SPDX-License-Identifier: BSD-3-Clause */
/* All contexts, and their work. */
#ifndef SIM_CONTEXTS_H
#define SIM_CONTEXTS_H

#include "context.h"
#include "stream.h"

/* All contexts that were ever created; none is removed. The lock guards their creation and end. */
extern struct sim_context *sim_contexts;
extern pthread_mutex_t sim_contexts_lock;

/*
 * The green contexts of a primary one: `context` first, and NULL after the last. Their work is the primary context's
 * work, too.
 */
struct sim_context *sim_context_next_green(const struct sim_context *parent, struct sim_context *context);

/*
 * Makes all work that is submitted from now on, in all streams, begin after the point, which is in the internal stream.
 */
CUresult sim_context_barrier(struct sim_context *context, struct sim_point point);

CUresult sim_context_grow_now(struct sim_context *context);

/* The context loads its first module or launches its first kernel, and may need more memory for this. */
static inline CUresult sim_context_grow(struct sim_context *context)
{
    return __atomic_load_n(&context->grown, __ATOMIC_RELAXED) ? CUDA_SUCCESS : sim_context_grow_now(context);
}

/* Waits for all work that was submitted to the context so far. */
CUresult sim_context_drain(struct sim_context *context);

/* Whether no work is queued or running in any stream of the context. */
bool sim_context_is_idle(struct sim_context *context);

/* For all contexts that are alive: whether all are idle; makes all fail. */
bool sim_contexts_are_idle(void);
void sim_contexts_fail(CUresult error);

#endif
