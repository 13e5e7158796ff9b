/* SPDX-License-Identifier: BSD-3-Clause */
/* Failures that the simulated driver is told to have for a while. */
#ifndef FUZZ_INJECTION_H
#define FUZZ_INJECTION_H

#include "thread.h"

/* Once, with the driver found. */
void start_injections(void);

/* Whether refusals are right. */
bool injected_lately(void);

void op_inject(struct thread *thread, const struct operation *operation);

#endif
