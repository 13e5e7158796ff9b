/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Measures how long work of this process is on each GPU, with the driver's events.
 *
 * Only work that passes the gate while it is paced is measured: by an event after each submission, and one before it if
 * the stream was idle. Most short submissions of known length go without events. While time is not charged, an event
 * only shows that earlier work is done. Work that overlaps counts once, also across streams; across contexts of one
 * GPU, it counts for each. No function here waits for the GPU, affects a capture, or shows a failure to the
 * application. After the first failure, measuring stops, and one line reports it.
 */
#ifndef GPUSHARE_GATE_METER_H
#define GPUSHARE_GATE_METER_H

#include "driver.h"
#include "gate/work.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* Called before and after the driver's call, inside the gate. gs_meter_end ends the thread's use of the submission. */
void gs_meter_begin(struct gs_submission *submission);
void gs_meter_end(struct gs_submission *submission);

/* Notes that something other than GPU work is queued in that stream. */
void gs_meter_order(CUstream stream, enum gs_stream_kind kind);

/*
 * Finds the submissions that are done. True if there are any. In an application's thread, it does nothing during
 * captures.
 */
bool gs_meter_look(void);
void gs_meter_look_from_helper(void);

/* The number of measured submissions that are not known to be done. */
unsigned gs_meter_in_flight(void);

/* The GPU time of each GPU, relative to the last restart; returns the number of GPUs. Does not set the time stamps. */
unsigned gs_meter_read(struct gpushare_meter meters[GPUSHARE_MAX_GPUS]);

/* Starts counting from 0 again. */
void gs_meter_restart(void);

/* The name of the work that runs now, as far as is known, and since when; never later than `since`. */
void gs_meter_running(char name[112], uint64_t *since);

/* Functions of a module or library, or a stream, are about to be removed, or have been removed with their context. */
void gs_meter_forget_functions(void);
void gs_meter_stream_ends(CUstream stream);
void gs_meter_context_ends(CUcontext context);

/* Continues the account of one GPU as that of another GPU. */
void gs_meter_moved(const uint8_t from[16], const uint8_t to[16]);

void gs_meter_after_fork(void);

#endif
