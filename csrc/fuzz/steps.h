/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Steps that a graph can contain: the driver's call, and the change of the model, which each launch of the graph
 * repeats.
 */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include "thread.h"

struct kind {
    const char *name;
    CUresult (*drive)(struct thread *, const struct operation *);
    void (*model)(struct thread *, const struct operation *);
    unsigned blocks, stream; /* how many blocks it uses, and the index of its stream argument */
    int async;               /* index of the argument that makes it asynchronous; -1: it always is */
};

/* NULL: the operation is not a step. */
const struct kind *kind_of(const struct operation *operation);

/* Called once: makes the bytes that are written. */
void make_pattern(void);

#endif
