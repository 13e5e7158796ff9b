/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An operation is executed by a stream and repeated by a graph node. It has a payload, a function that executes it, and
 * the points in other streams that it waits for. Operations are reference-counted, because a graph keeps its own.
 */
#ifndef SIM_OP_H
#define SIM_OP_H

#include "driver.h"

#include <pthread.h>

struct sim_context;
struct sim_capture;
struct sim_op;

/* Everything up to this sequence number of the stream. Stream objects are recycled, and their numbers continue. */
struct sim_point {
    struct sim_stream *stream;
    uint64_t sequence;
};

typedef CUresult (*sim_op_run)(struct sim_context *context, struct sim_op *op);

enum sim_op_kind {
    SIM_OP_KERNEL,
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_HOST,
    SIM_OP_GRAPH,
    SIM_OP_ALLOCATE, /* only in graphs, as is the next one */
    SIM_OP_FREE,
    SIM_OP_RECORD,
    SIM_OP_WAIT,
    SIM_OP_CONDITIONAL,
    SIM_OP_BATCH, /* waits for values, and writes of values */
    SIM_OP_OTHER
};

struct sim_op {
    struct sim_op *next;
    enum sim_op_kind kind;
    unsigned references;
    uint64_t sequence;
    bool despite_error; /* runs even if the context has failed: bookkeeping that must not be skipped */
    CUresult injected;  /* it is not executed, and a synchronisation with it returns this (inject.h) */
    sim_op_run run;
    void (*dispose)(struct sim_op *op); /* may be NULL */
    struct sim_point *points;
    unsigned point_count;
    _Alignas(16) unsigned char payload[];
};

struct sim_stream {
    uint64_t magic;
    struct sim_context *context;
    struct sim_stream *next, *previous; /* in the context's list, or in the pool of recycled streams */
    unsigned flags;
    int priority;
    unsigned long long id;
    bool blocking; /* synchronises with the legacy stream */
    bool hidden;   /* internal to the context */
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct sim_op *first, *last;
    bool has_worker, asleep, ending;
    uint64_t submitted; /* sequence number of the last operation; written under `lock`, read without */
    uint64_t completed;
    unsigned waiters;
    struct sim_capture *capture; /* not NULL while the stream is being captured */
    struct sim_stream *captured_next;
    CUresult injected; /* under `lock`: not yet reported, for the operation `injected_at` */
    uint64_t injected_at;
};

struct sim_op *sim_op_new(enum sim_op_kind kind, size_t payload, sim_op_run run);
void sim_op_release(struct sim_op *op);

/* Whether the operation only orders others and has no work of its own. */
bool sim_op_only_orders(enum sim_op_kind kind);

/* Does nothing: the function of operations that only order others. */
CUresult sim_op_nothing(struct sim_context *context, struct sim_op *op);

#endif
