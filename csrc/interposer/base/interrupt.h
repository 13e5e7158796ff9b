/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Handles SIGINT while a thread waits for the GPU.
 *
 * The signal reaches only the main thread. The waiting thread may be another one (such as PyTorch's autograd threads),
 * for which the main thread waits in C++. The scheduler reports interrupts of Jupyter kernels that the kernel
 * provisioner started. For other programs (`gpushare run`, VS Code), the application's SIGINT handler is wrapped while
 * a cell runs or the main thread waits.
 */
#ifndef GPUSHARE_BASE_INTERRUPT_H
#define GPUSHARE_BASE_INTERRUPT_H

#include <stdbool.h>

/* Wraps the current handler, unless there is none (default action, ignored) or the caller is not the main thread. */
void gs_interrupt_watch(void);

/* Restores the application's handler, unless the application has set another one since. */
void gs_interrupt_unwatch(void);

/* --- For the client. --- */

/* A thread waits although the process is not attached yet. It can be interrupted, too. */
void gs_interrupt_expect(bool on);

/* Whether there was an interrupt since the last call. Each interrupt calls the helper (helper.h). */
bool gs_interrupt_take(void);

#endif
