/* SPDX-License-Identifier: BSD-3-Clause */
/* What a call submits, in one word: a kernel's function, an executable graph, or one of a few kinds. */
#ifndef GPUSHARE_GATE_WORK_H
#define GPUSHARE_GATE_WORK_H

#include <stdbool.h>
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

#endif
