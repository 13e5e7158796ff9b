/* SPDX-License-Identifier: BSD-3-Clause */
/* What lower modules need of higher ones, which lifecycle.c gives them before anything else can call. */
#ifndef SIM_PORTS_H
#define SIM_PORTS_H

#include "driver.h"

struct sim_graph;
struct sim_node;
struct sim_op;
struct sim_range;

struct sim_ports {
    /* A stream, event or context was waited for. */
    void (*settle)(void);
    /* Memory of a pool, or managed memory, is freed. Under the table's lock. */
    void (*take_back)(struct sim_range *range);
    void (*forget_managed)(struct sim_range *range);
    /* An operation is captured: takes over the reference, also on failure. A capture has failed with its graph. */
    CUresult (*record)(struct sim_graph *graph, struct sim_op *op, struct sim_node **node);
    void (*discard)(struct sim_graph *graph);
};

extern struct sim_ports sim_ports;

#endif
