/* SPDX-License-Identifier: BSD-3-Clause */
/* What each operation does; their arguments are said at their functions. */
#ifndef FUZZ_OPERATIONS_H
#define FUZZ_OPERATIONS_H

#include "thread.h"

/* Threads of the program that runs. */
extern unsigned concurrent;

void make_streams(struct thread *thread);

void run_operation(struct thread *thread, const struct operation *operation);

/* Every byte is compared, and everything is given back. */
void finish(struct thread *thread);

#endif
