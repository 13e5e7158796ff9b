/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether this process may be checkpointed, and what has to be done for that besides the gates.
 *
 * While the process is parked, no thread of it is in the driver (awake.h). Then the scheduler's hibernator removes its
 * contexts from the GPU with the driver's checkpoint, and restores them before the driver is called again.
 * client/parking.c handles the messages, and client/waking.c the waits.
 */
#ifndef GPUSHARE_HIBERNATE_H
#define GPUSHARE_HIBERNATE_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the process needs on its GPU to be awake. Returns how many GPUs it uses. */
unsigned gs_hibernate_needs(struct gpushare_usage *needs);

/* The bytes that the contexts freed when they left the GPU. Usually more than was admitted for them. */
void gs_hibernate_note_context_bytes(uint64_t bytes);

/* Returns the needs as well, and whether the process may be parked, apart from what its threads do. */
enum gpushare_parking gs_hibernate_may(struct gpushare_usage *needs);

/*
 * The process shares memory or events with other processes or other APIs, or it has managed memory. Both are permanent.
 */
void gs_hibernate_note_sharing(void);
void gs_hibernate_note_managed(void);

/* The application looks up a CUDA kernel of that name. */
void gs_hibernate_note_lookup(const char *name);

/* The process is about to be awake. What was on the GPU `from` is on `to` now (both NULL: on the same GPU). */
void gs_hibernate_restored(const uint8_t from[16], const uint8_t to[16]);

/*
 * Runs the hibernator when there is no scheduler to do so. Its program is in the folder of this library, and it runs
 * without the interposer. gs_hibernator_run starts it unless it is running, and returns its state. After its end, the
 * next call starts another. `text`: why it failed.
 */
enum gs_hibernator { GS_HIBERNATOR_RUNS, GS_HIBERNATOR_DONE, GS_HIBERNATOR_FAILED };
enum gs_hibernator gs_hibernator_run(char *text, size_t size);

/* In the child of a fork: forgets the parent's hibernator. */
void gs_hibernate_after_fork(void);

#endif
