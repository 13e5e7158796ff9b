/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "stream.h"

struct sim_event {
    uint64_t magic;
    struct sim_event *next; /* in the pool of recycled ones */
    struct sim_context *context;
    unsigned flags;
    pthread_mutex_t lock;
    struct sim_point point; /* of the last record; stream NULL: never recorded */
    uint64_t generation;    /* of the last record, goes on when the object is recycled */
    uint64_t time, timed_generation;
    struct sim_capture *capture; /* recorded into this capture last */
    struct sim_beacon *beacon;   /* what processes share of an interprocess event, else NULL */
    unsigned long long life;     /* grows when the event is destroyed: the object will be another event's */
};

/* One record of an event, under way. */
struct sim_event_record {
    struct sim_event *event;
    uint64_t generation;
    struct sim_beacon *beacon; /* of an interprocess event */
    uint64_t number;
};

/* What the operation of a node holds. */
struct sim_event_named {
    struct sim_event *event;
    unsigned long long life; /* of the event when it was named */
};

CUresult sim_event_find(CUevent handle, struct sim_event **event);
bool sim_event_is_open(const struct sim_event *event);

/* Under the event's lock; who calls sets its point. */
struct sim_event_record sim_event_begin(struct sim_event *event);
void sim_event_reach(const struct sim_event_record *record);
void sim_event_release(const struct sim_event_record *record);

/* An operation of a node; the kind is SIM_OP_RECORD or SIM_OP_WAIT. */
CUresult sim_op_event(struct sim_op **op, enum sim_op_kind kind, CUevent event);

#endif
