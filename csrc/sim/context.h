/* SPDX-License-Identifier: BSD-3-Clause */
/* A context, and the thread's current context. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "driver.h"

#include <pthread.h>

#define SIM_CONTEXT_MAGIC UINT64_C(0x53494d4354583031)

struct sim_stream;

struct sim_context {
    uint64_t magic;
    struct sim_context *made_before;
    unsigned device;
    bool primary;
    struct sim_context *parent; /* for a green context: the primary one, which owns its memory */
    unsigned retained;
    unsigned attached; /* how often it is attached, in addition to its creation */
    unsigned flags;
    unsigned long long id;
    CUresult error; /* sticky: set by a fault, cleared only by destruction */
    size_t limits[CU_LIMIT_MAX];
    /*
     * Serialises submissions, so that the legacy stream and the blocking streams agree on "submitted before". Guards
     * `streams`.
     */
    pthread_mutex_t order;
    struct sim_stream *legacy;
    struct sim_stream *internal; /* carries the order of cuCtxRecordEvent and cuCtxWaitEvent */
    struct sim_stream *streams;
    uint64_t waits;             /* sequence number in `internal` after which new streams begin; 0: none */
    uint64_t code;              /* bytes of the kernels that were loaded in it */
    bool grown;                 /* it has taken the memory for its first module or kernel */
    unsigned captures;          /* streams that are being captured */
    unsigned blocking_captures; /* those of them that synchronise with the legacy stream */
};

extern __thread struct sim_context *sim_context_current __attribute__((tls_model("initial-exec")));

CUresult sim_context_enter(struct sim_context **context);

CUresult sim_context_alive(const struct sim_context *context);

/* NULL means the current context. */
CUresult sim_context_resolve(CUcontext handle, struct sim_context **context);

/* For a strict driver: the failure of one context is permanent for the whole process. */
extern CUresult sim_process_error;

static inline void sim_context_fail(struct sim_context *context, CUresult error)
{
    CUresult none = CUDA_SUCCESS;
    if (sim_config.strict)
        __atomic_compare_exchange_n(&sim_process_error, &none, error, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    none = CUDA_SUCCESS;
    context = context->parent != NULL ? context->parent : context;
    __atomic_compare_exchange_n(&context->error, &none, error, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline CUresult sim_context_error(const struct sim_context *context)
{
    context = context->parent != NULL ? context->parent : context;
    CUresult error = __atomic_load_n(&context->error, __ATOMIC_RELAXED);
    return error != CUDA_SUCCESS ? error : __atomic_load_n(&sim_process_error, __ATOMIC_RELAXED);
}

static inline CUresult sim_process_check(void)
{
    return __atomic_load_n(&sim_process_error, __ATOMIC_RELAXED);
}

#endif
