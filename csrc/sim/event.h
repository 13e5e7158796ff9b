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
};

#endif
