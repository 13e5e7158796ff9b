/* SPDX-License-Identifier: BSD-3-Clause */
#include "op.h"

#include "inject.h"

#include <stdlib.h>

CUresult sim_op_nothing(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    (void)op;
    return CUDA_SUCCESS;
}

bool sim_op_only_orders(enum sim_op_kind kind)
{
    return kind == SIM_OP_OTHER || kind == SIM_OP_RECORD || kind == SIM_OP_WAIT || kind == SIM_OP_BATCH;
}

struct sim_op *sim_op_new(enum sim_op_kind kind, size_t payload, sim_op_run run)
{
    struct sim_op *op = malloc(sizeof *op + payload);
    if (op == NULL)
        return NULL;
    *op = (struct sim_op){.kind = kind, .references = 1, .run = run};
    if (sim_op_only_orders(kind) || kind == SIM_OP_HOST || kind == SIM_OP_CONDITIONAL)
        return op;
    if (__builtin_expect(__atomic_load_n(&sim_injecting, __ATOMIC_RELAXED), 0))
        op->injected = sim_inject_take_later();
    return op;
}

void sim_op_release(struct sim_op *op)
{
    if (__atomic_sub_fetch(&op->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (op->dispose != NULL)
        op->dispose(op);
    free(op->points);
    free(op);
}
