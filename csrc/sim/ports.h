/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions of higher modules that lower modules need. lifecycle.c provides them before any other call. */
#ifndef SIM_PORTS_H
#define SIM_PORTS_H

#include "driver.h"

struct sim_graph;
struct sim_node;
struct sim_op;
struct sim_range;

struct sim_ports {
    /* A stream, event or context was synchronised. */
    void (*settle)(void);
    /* Memory of a pool, or managed memory, is freed. Called with the table's lock held. */
    void (*take_back)(struct sim_range *range);
    void (*forget_managed)(struct sim_range *range);
    /*
     * Records a captured operation. Takes ownership of the reference, also on failure. If the graph fails, the capture
     * has failed.
     */
    CUresult (*record)(struct sim_graph *graph, struct sim_op *op, struct sim_node **node);
    void (*discard)(struct sim_graph *graph);
};

extern struct sim_ports sim_ports;

#endif
