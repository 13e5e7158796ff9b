/* SPDX-License-Identifier: BSD-3-Clause */
/* Failures that the simulated driver injects for a while. */
#ifndef FUZZ_INJECTION_H
#define FUZZ_INJECTION_H

#include "thread.h"

/* Called once, after the driver was found. */
void start_injections(void);

/* Whether refusals are accepted now. */
bool injected_lately(void);

void op_inject(struct thread *thread, const struct operation *operation);

#endif
