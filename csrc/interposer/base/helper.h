/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls the helper thread (client/helper.c), which sleeps until a message comes, its time is over, or it is called. */
#ifndef GPUSHARE_BASE_HELPER_H
#define GPUSHARE_BASE_HELPER_H

/* Any thread may call it at any time, also from a signal handler. Does nothing before gs_helper_prepare. */
void gs_helper_call(void);

void gs_helper_prepare(void);

/* A descriptor that becomes readable when the helper is called; -1 before gs_helper_prepare. */
int gs_helper_calls(void);

/* Discards the calls so far. */
void gs_helper_take_calls(void);

/* In the child of a fork: from now on, no call reaches the parent's thread. */
void gs_helper_after_fork(void);

#endif
