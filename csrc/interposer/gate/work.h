/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a call submits, as one word: the function of a CUDA kernel, an executable graph, or one of a few kinds. And the
 * stream that it goes to.
 */
#ifndef GPUSHARE_GATE_WORK_H
#define GPUSHARE_GATE_WORK_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gs_work {
    GS_WORK_NONE,  /* no work for the GPU, or a negligible amount */
    GS_WORK_ORDER, /* orders a stream, or runs on the host: later work in the stream may begin late */
    GS_WORK_COPY,
    GS_WORK_FILL,
    GS_WORK_PREFETCH,
    GS_WORK_KERNEL, /* a CUDA kernel of an unknown or forgotten function */
    GS_WORK_OTHER,
    GS_WORK_KINDS
};

/* Handles are addresses of driver structures: aligned, and greater than all kinds. */
#define GS_WORK_FUNCTION(function) ((uintptr_t)(function))
#define GS_WORK_GRAPH(exec) ((uintptr_t)(exec) | 1)

static inline bool gs_work_is_graph(uintptr_t work)
{
    return work >= GS_WORK_KINDS && (work & 1) != 0;
}

static inline bool gs_work_is_function(uintptr_t work)
{
    return work >= GS_WORK_KINDS && (work & 1) == 0;
}

/* Whether the work takes GPU time, so that it is paced and measured. */
static inline bool gs_work_counts(uintptr_t work)
{
    return work > GS_WORK_ORDER;
}

/* How to interpret the stream argument of a gated call. */
enum gs_stream_kind {
    GS_STREAM_LEGACY,   /* CUstream; NULL is the legacy default stream */
    GS_STREAM_PTSZ,     /* CUstream; NULL is the thread's own default stream */
    GS_STREAM_NONE,     /* the call has no stream argument; it uses the legacy default stream */
    GS_STREAM_NONE_PTDS /* the call has no stream argument; it uses the thread's own default stream */
};

struct gs_metered_stream;

/* One submission, from before it is admitted until it has been submitted. Used by one thread only. */
struct gs_submission {
    uintptr_t work;
    size_t size; /* blocks or bytes (enter.h) */
    CUstream stream;
    enum gs_stream_kind kind;
    bool admitted;                      /* it counts as in flight (pace.h) */
    bool estimated;                     /* there is an estimate: */
    uint64_t estimate_ns;               /* 0 if nothing is known */
    bool learns;                        /* the estimate is old, or is for another size */
    bool charged;                       /* its duration is charged, even if an estimate exists */
    uint64_t most_unmeasured_ns;        /* how much work, including this, may go without events */
    struct gs_metered_stream *measured; /* NULL: it is not measured */
    CUevent begin, end;
};

#endif
