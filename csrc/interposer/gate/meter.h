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
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* How the stream argument of a gated call is to be read. */
enum gs_stream_kind {
    GS_STREAM_LEGACY,   /* CUstream; NULL is the legacy default stream */
    GS_STREAM_PTSZ,     /* CUstream; NULL is the thread's own default stream */
    GS_STREAM_NONE,     /* the call takes no stream; what it does in one, it does in the legacy default stream */
    GS_STREAM_NONE_PTDS /* ... in the thread's own */
};

struct gs_metered_stream;

/* One submission, from before it is let in until it has been submitted. Its thread's. */
struct gs_submission {
    uintptr_t work;
    size_t size; /* of which there is so much (enter.h) */
    CUstream stream;
    enum gs_stream_kind kind;
    bool admitted;                      /* it counts as in flight (pace.h) */
    bool estimated;                     /* ... for so long: */
    uint64_t estimate_ns;               /* 0 where nothing is known */
    bool learns;                        /* the estimate is old, or of another size */
    bool charged;                       /* how long it takes counts, whatever is known */
    uint64_t most_unmeasured_ns;        /* so much, it among it, may go by without events */
    struct gs_metered_stream *measured; /* NULL: it is not */
    CUevent begin, end;
};

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

/* Measuring has failed. */
bool gs_meter_broken(void);

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
