/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long work of this process is on each GPU, measured with the driver's events.
 *
 * Only what passes the gate while it is paced is measured: an event after a submission, and one before it where the
 * stream had nothing to do. Most short ones whose length is known already go without events; where time is not charged,
 * an event says no more than that what came before it is done. Work that overlaps counts
 * once, also that of several streams (of several contexts on one GPU, it counts for each). Nothing here waits for the
 * GPU, touches a capture, or lets the application see a failure: after the first one, nothing is measured any more, and
 * one line says so.
 */
#ifndef GPUSHARE_GATE_METER_H
#define GPUSHARE_GATE_METER_H

#include "driver.h"
#include "gate/work.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* Around the driver's call, inside the gate; the end is the end of its being this thread's. */
void gs_meter_begin(struct gs_submission *submission);
void gs_meter_end(struct gs_submission *submission);

/* Something that is no work of the GPU's goes into that stream. */
void gs_meter_order(CUstream stream, enum gs_stream_kind kind);

/* Looks which submissions are done. True if some are. From an application's thread it does nothing during captures. */
bool gs_meter_look(void);
void gs_meter_look_from_helper(void);

/* Submissions that were measured and are not known to be done. */
unsigned gs_meter_in_flight(void);

/* What there was of each GPU; returns how many. Times are left 0. */
unsigned gs_meter_read(struct gpushare_meter meters[GPUSHARE_MAX_GPUS]);

/* Counts from 0 again. */
void gs_meter_restart(void);

/* What runs, as far as is known, and since when: not later than `since`. */
void gs_meter_running(char name[112], uint64_t *since);

/* Functions of some module or library, or a stream, are about to go; or have gone with their context. */
void gs_meter_forget_functions(void);
void gs_meter_stream_ends(CUstream stream);
void gs_meter_context_ends(CUcontext context);

/* What was metered of one GPU goes on as another's. */
void gs_meter_moved(const uint8_t from[16], const uint8_t to[16]);

void gs_meter_after_fork(void);

#endif
