/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls that have done their work but do not return yet (/linger in inject.h). */
#ifndef SIM_LINGER_H
#define SIM_LINGER_H

#include <stdbool.h>

/* The current call of this thread must linger. */
extern __thread bool sim_lingers __attribute__((tls_model("initial-exec")));

void sim_linger(void);

#endif
