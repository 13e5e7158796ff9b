/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The list of this process's CUDA contexts, and what is known about each. contexts.c changes the list, failures.c the
 * fields about failures, and drain.c those about work in flight.
 */
#ifndef GPUSHARE_GATE_CONTEXT_LIST_H
#define GPUSHARE_GATE_CONTEXT_LIST_H

#include "base/lock.h"
#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

/* Not a valid number of submissions. */
#define GS_NOT_IDLE UINT64_MAX

struct gs_context {
    CUcontext handle;
    CUcontext parent; /* for a green context: the device's primary context, which owns all its memory */
    CUdevice device;
    unsigned retained; /* how often a primary context is retained */
    unsigned attached; /* how often another context is attached, in addition to its creation */
    bool primary;
    bool charged;   /* the scheduler has admitted it */
    bool ending;    /* being reset: other threads must not use it */
    bool was_reset; /* and the program may not have retained it since */

    /* For drain.c. */
    CUevent event;  /* created at the first drain */
    CUevent mark;   /* created at the first mark */
    bool pending;   /* recorded in this drain, and not known to be done */
    uint64_t waits; /* the drain for which a thread should synchronise it; 0: none */
    uint64_t idle;  /* number of submissions when all of its work was done */

    /* For failures.c. */
    CUevent probe;    /* never recorded: a query of it returns the context's failure */
    CUresult failure; /* CUDA_SUCCESS: no failure is known */
    bool attended;    /* gs_context_take_failed has returned the failed context */

    struct gs_context *next;
};

struct gs_context_list {
    struct gs_mutex lock;
    struct gs_context *first;
    uint64_t idle;     /* number of submissions when all work of all contexts was done; read without the lock */
    uint32_t removals; /* number of contexts that have ended or were reset; read without the lock */
};

extern struct gs_context_list gs_contexts;

/* NULL: the context is not known. */
struct gs_context *gs_context_find_locked(CUcontext handle);

/* A context that is alive and has not failed, or NULL. */
CUcontext gs_context_any(void);
/* Such a context on that device, preferably the calling thread's; never `except`. */
CUcontext gs_context_on(CUdevice device, CUcontext except);

/* The context that owns memory allocated in this one: for a green context, its primary context. */
CUcontext gs_context_owner(CUcontext context);

/* The contexts of the device that have not failed. Returns their number, which may be more than `most`. */
unsigned gs_context_all_on(CUdevice device, CUcontext *found, unsigned most);

/* Whether `context` is alive, as far as the interposer knows. */
bool gs_context_alive(CUcontext context);

/* Whether all work of all contexts was done at that number of submissions (gs_gate_submissions). */
bool gs_context_idle(uint64_t submissions);

/* How many contexts have ended or were reset. */
uint32_t gs_context_removals(void);

#endif
