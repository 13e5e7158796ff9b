/* SPDX-License-Identifier: BSD-3-Clause */
/* Steps that a graph may hold: the driver's call, then the model's change, which a launch of the graph repeats. */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include "thread.h"

struct kind {
    const char *name;
    CUresult (*drive)(struct thread *, const struct operation *);
    void (*model)(struct thread *, const struct operation *);
    unsigned blocks, stream; /* how many blocks it names, and where its stream stands */
    int async;               /* where it says whether it is asynchronous; -1: it always is */
};

/* NULL: it is not a step. */
const struct kind *kind_of(const struct operation *operation);

/* Once: makes the bytes that are written. */
void make_pattern(void);

#endif
