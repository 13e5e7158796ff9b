/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA contexts of this process: which there are, and what is known of each. The list changes in contexts.c; what
 * is known of failures belongs to failures.c, and of work that is under way to drain.c.
 */
#ifndef GPUSHARE_GATE_CONTEXT_LIST_H
#define GPUSHARE_GATE_CONTEXT_LIST_H

#include "base/lock.h"
#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

/* No count of submissions. */
#define GS_NOT_IDLE UINT64_MAX

struct gs_context {
    CUcontext handle;
    CUcontext parent; /* of a green context, the device's primary one: all memory is that one's */
    CUdevice device;
    unsigned retained; /* of a primary context */
    unsigned attached; /* of another, beside whoever made it */
    bool primary;
    bool charged;   /* it was admitted */
    bool ending;    /* being reset: not to be used from other threads */
    bool was_reset; /* and the program may not have retained it since */

    /* Of drain.c. */
    CUevent event;  /* made at the first drain */
    CUevent mark;   /* made at the first mark */
    bool pending;   /* recorded in this drain and not seen done */
    uint64_t waits; /* the drain that a thread is to synchronise it for; 0: none */
    uint64_t idle;  /* submissions when all of its work was done */

    /* Of failures.c. */
    CUevent probe;    /* never recorded: asked, it tells of the context's failure */
    CUresult failure; /* CUDA_SUCCESS: none is known */
    bool attended;    /* to the failure: gs_context_take_failed has returned it */

    struct gs_context *next;
};

struct gs_context_list {
    struct gs_mutex lock;
    struct gs_context *first;
    uint64_t idle;     /* submissions when all work of all of them was done; read without the lock */
    uint32_t removals; /* contexts that have ended, or were reset; read without the lock */
};

extern struct gs_context_list gs_contexts;

/* NULL: it is not known. */
struct gs_context *gs_context_find_locked(CUcontext handle);

/* One that is alive and has not failed, or NULL. */
CUcontext gs_context_any(void);
/* The same of that device, the calling thread's if it is one; never `except`. */
CUcontext gs_context_on(CUdevice device, CUcontext except);

/* Whose memory it is that is allocated in the context: of a green context, the primary one's. */
CUcontext gs_context_owner(CUcontext context);

/* Those of the device that have not failed; returns how many there are, which may be more than `most`. */
unsigned gs_context_all_on(CUdevice device, CUcontext *found, unsigned most);

/* True if `context` is one that is alive, as far as we saw. */
bool gs_context_alive(CUcontext context);

/* All work of all contexts was done when so much had been submitted (gs_gate_submissions). */
bool gs_context_idle(uint64_t submissions);

/* How many contexts have ended, or were reset. */
uint32_t gs_context_removals(void);

#endif
