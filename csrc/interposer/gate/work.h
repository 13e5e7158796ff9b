/* SPDX-License-Identifier: BSD-3-Clause */
/* What a call submits: in one word, a kernel's function, an executable graph, or one of a few kinds; and where to. */
#ifndef GPUSHARE_GATE_WORK_H
#define GPUSHARE_GATE_WORK_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gs_work {
    GS_WORK_NONE,  /* nothing that the GPU carries out, or nothing to speak of */
    GS_WORK_ORDER, /* orders a stream, or is the host's: what follows it in the stream may begin late */
    GS_WORK_COPY,
    GS_WORK_FILL,
    GS_WORK_PREFETCH,
    GS_WORK_KERNEL, /* of a function that is not known, or not any more */
    GS_WORK_OTHER,
    GS_WORK_KINDS
};

/* Handles are addresses of the driver's structures: aligned, and above all the kinds. */
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

/* It takes time of the GPU: it is paced and measured. */
static inline bool gs_work_counts(uintptr_t work)
{
    return work > GS_WORK_ORDER;
}

/* How the stream argument of a gated call is to be read. */
enum gs_stream_kind {
    GS_STREAM_LEGACY,   /* CUstream; NULL is the legacy default stream */
    GS_STREAM_PTSZ,     /* CUstream; NULL is the thread's own default stream */
    GS_STREAM_NONE,     /* the call takes no stream; what it does in one, it does in the legacy default stream */
    GS_STREAM_NONE_PTDS /* ... in the thread's own */
};

struct gs_metered_stream;

/* One submission, from before it is let in until it has been submitted. Its thread's. */
struct gs_submission {
    uintptr_t work;
    size_t size; /* blocks or bytes (enter.h) */
    CUstream stream;
    enum gs_stream_kind kind;
    bool admitted;                      /* it counts as in flight (pace.h) */
    bool estimated;                     /* ... for so long: */
    uint64_t estimate_ns;               /* 0 where nothing is known */
    bool learns;                        /* the estimate is old, or of another size */
    bool charged;                       /* how long it takes counts, whatever is known */
    uint64_t most_unmeasured_ns;        /* so much, it among it, may go by without events */
    struct gs_metered_stream *measured; /* NULL: it is not */
    CUevent begin, end;
};

#endif
