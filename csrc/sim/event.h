/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "stream.h"

struct sim_event {
    uint64_t magic;
    struct sim_event *next; /* in the pool of recycled events */
    struct sim_context *context;
    unsigned flags;
    pthread_mutex_t lock;
    struct sim_point point; /* of the last record; stream NULL: never recorded */
    uint64_t generation;    /* of the last record; continues when the object is recycled */
    uint64_t time, timed_generation;
    struct sim_capture *capture; /* the capture into which it was last recorded */
    struct sim_beacon *beacon;   /* the shared part of an interprocess event, otherwise NULL */
    unsigned long long life;     /* grows when the event is destroyed, because the object will be reused */
};

/* One record of an event, in progress. */
struct sim_event_record {
    struct sim_event *event;
    uint64_t generation;
    struct sim_beacon *beacon; /* for an interprocess event */
    uint64_t number;
};

/* The payload of a node's operation. */
struct sim_event_named {
    struct sim_event *event;
    unsigned long long life; /* of the event when the node was created */
};

CUresult sim_event_find(CUevent handle, struct sim_event **event);
bool sim_event_is_open(const struct sim_event *event);

/* Called with the event's lock held. The caller sets its point. */
struct sim_event_record sim_event_begin(struct sim_event *event);
void sim_event_reach(const struct sim_event_record *record);
void sim_event_release(const struct sim_event_record *record);

/* The operation of a node; `kind` is SIM_OP_RECORD or SIM_OP_WAIT. */
CUresult sim_op_event(struct sim_op **op, enum sim_op_kind kind, CUevent event);

#endif
