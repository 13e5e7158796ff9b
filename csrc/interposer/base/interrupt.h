/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * SIGINT while a thread waits for the GPU.
 *
 * The signal reaches the main thread only, and the one that waits may be another (PyTorch's autograd threads) while
 * the main thread waits for it in C++. A kernel under our provisioner is told by the scheduler. For all others
 * (`gpushare run`, VS Code), the application's SIGINT handler is wrapped while a cell runs or the main thread waits.
 */
#ifndef GPUSHARE_BASE_INTERRUPT_H
#define GPUSHARE_BASE_INTERRUPT_H

#include <stdbool.h>

/* Wraps the present handler, unless there is none (default action, ignored) or the caller is not the main thread. */
void gs_interrupt_watch(void);

/* Puts the application's handler back, if it has not set another since. */
void gs_interrupt_unwatch(void);

/* --- For the client. --- */

/* A thread waits although the process is not attached yet: it can be interrupted, too. */
void gs_interrupt_expect(bool on);

/* Whether there was one since this was called last; it has called the helper (helper.h). */
bool gs_interrupt_take(void);

#endif
