/* SPDX-License-Identifier: BSD-3-Clause */
/* Arrays, which stay on the GPU and are counted. */
#ifndef GPUSHARE_HOOKS_ARRAY_H
#define GPUSHARE_HOOKS_ARRAY_H

#include "driver.h"

/* Forgets the arrays of a context, which its end destroys. */
void gs_array_context_ends(CUcontext context);

void gs_array_after_fork(void);

#endif
