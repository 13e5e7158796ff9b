/* SPDX-License-Identifier: BSD-3-Clause */
/* All contexts, and the work in them. */
#ifndef SIM_CONTEXTS_H
#define SIM_CONTEXTS_H

#include "context.h"
#include "stream.h"

/* All that were ever made; none is ever taken out. The lock guards that they are made and end. */
extern struct sim_context *sim_contexts;
extern pthread_mutex_t sim_contexts_lock;

/* The green contexts of a primary one: `context` first, and NULL after the last. What is in them is its work, too. */
struct sim_context *sim_context_next_green(const struct sim_context *parent, struct sim_context *context);

/* All work submitted from now on, in all streams, begins after the point, which is in the internal stream. */
CUresult sim_context_barrier(struct sim_context *context, struct sim_point point);

CUresult sim_context_grow_now(struct sim_context *context);

/* The context loads its first module or launches its first kernel, for which it may need more memory. */
static inline CUresult sim_context_grow(struct sim_context *context)
{
    return __atomic_load_n(&context->grown, __ATOMIC_RELAXED) ? CUDA_SUCCESS : sim_context_grow_now(context);
}

/* Waits for everything that was submitted to the context so far. */
CUresult sim_context_drain(struct sim_context *context);

/* Nothing is queued or running in any stream of the context. */
bool sim_context_is_idle(struct sim_context *context);

/* Of all contexts that live: whether all are idle; all fail. */
bool sim_contexts_are_idle(void);
void sim_contexts_fail(CUresult error);

#endif
