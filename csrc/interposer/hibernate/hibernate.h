/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether this process may be checkpointed, and what has to be done about it besides the gates.
 *
 * While it is parked, no thread of it is in the driver (awake.h); then the scheduler's hibernator takes its contexts
 * off the GPU by the driver's checkpoint, and brings them back before the driver is called again. client/parking.c
 * has the messages, client/waking.c the waits.
 */
#ifndef GPUSHARE_HIBERNATE_H
#define GPUSHARE_HIBERNATE_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What it needs on its GPU to be awake. Returns how many GPUs it uses. */
unsigned gs_hibernate_needs(struct gpushare_usage *needs);

/* Bytes that its contexts took when they left: more than they had been admitted with, as a rule. */
void gs_hibernate_took(uint64_t bytes);

/* The same, and whether it may be parked, as far as that does not depend on its threads. */
enum gpushare_parking gs_hibernate_may(struct gpushare_usage *needs);

/* It shares memory or events with other processes, or with other APIs; it has managed memory. Both for good. */
void gs_hibernate_shares(void);
void gs_hibernate_manages(void);

/* A kernel of that name is looked up. */
void gs_hibernate_looks_up(const char *name);

/* It is about to be awake: what was on the GPU `from` is on `to` now (both NULL: where it was). */
void gs_hibernate_restored(const uint8_t from[16], const uint8_t to[16]);

/*
 * The hibernator, run by ourselves where no scheduler does it: beside this library, without us in it. gs_hibernator_run
 * starts it unless it runs, and says how it goes on; after its end, the next call starts another. `text`: why it
 * failed.
 */
enum gs_hibernator { GS_HIBERNATOR_RUNS, GS_HIBERNATOR_DONE, GS_HIBERNATOR_FAILED };
enum gs_hibernator gs_hibernator_run(char *text, size_t size);

/* In the child of a fork: the parent's is none of ours. */
void gs_hibernate_after_fork(void);

#endif
