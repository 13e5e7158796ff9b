/* SPDX-License-Identifier: BSD-3-Clause */
/* The operations. Their arguments are described at their functions. */
#ifndef FUZZ_OPERATIONS_H
#define FUZZ_OPERATIONS_H

#include "thread.h"

/* The number of threads of the running program. */
extern unsigned concurrent;

void make_streams(struct thread *thread);

void run_operation(struct thread *thread, const struct operation *operation);

/* Compares every byte, and frees everything. */
void finish(struct thread *thread);

#endif
