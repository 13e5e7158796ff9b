/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The state of this process towards the scheduler, as far as the whole interposer needs it. The client writes it. No
 * function here waits or takes a lock.
 */
#ifndef GPUSHARE_BASE_SESSION_H
#define GPUSHARE_BASE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

enum gs_attachment { GS_NOT_ATTACHED_YET, GS_ATTACHED, GS_OUT_OF_THE_WAY };

enum gs_attachment gs_session_attachment(void);

/*
 * Whether the interposer manages this process's memory: true after a successful attach, also while there is no
 * scheduler.
 */
bool gs_session_attached(void);

/* Why this process is not attached, or NULL. */
const char *gs_session_why_not(void);

/* Called when a program begins to use CUDA. In a forked child, where CUDA does not work, prints that once. */
void gs_session_report_fork(void);

/* How many other groups are waiting for the GPU, as last reported by the scheduler. */
uint32_t gs_session_contended(void);

/* The bytes that the process may hold on each GPU; 0: it has no limit of its own. */
uint64_t gs_session_cap(void);

/* --- For the client. --- */

void gs_session_attach(void);
void gs_session_step_aside(const char *why);
void gs_session_set_contended(uint32_t groups);
void gs_session_set_cap(uint64_t bytes);

/* In the child of a fork. `begun`: the parent had used CUDA, or was about to. */
void gs_session_after_fork(bool begun);

#endif
