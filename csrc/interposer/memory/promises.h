/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What memory needs of the scheduler: promises of room, and the lease under which it has them. The client provides it
 * before the process is attached; nothing here is called before.
 */
#ifndef GPUSHARE_MEMORY_PROMISES_H
#define GPUSHARE_MEMORY_PROMISES_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct gs_slot;

enum gs_reach {
    GS_REACH_NONE, /* no lease is held, or the gate is open: nothing can touch what has no memory */
    GS_REACH_NOW,  /* the caller is inside the gate: the lease stays until gs_gate_leave_leased */
    GS_REACH_LATER /* there is no room that the scheduler knows of */
};

struct gs_promises {
    /*
     * Asks the scheduler to promise more memory and waits for the answer. `least` is what must be promised, `most` what
     * would be best. Returns GS_ERROR_CANCELLED (client/waits.h) if waits were cancelled since `cancels` was returned
     * by the function of that name, and GPUSHARE_GROWTH_SWAPPED if the scheduler stays away. `urgent`: what runs may
     * need it before the lease can be given back. With GROWTH_SWAPPED the lease, if there was one, has been given up
     * when this returns.
     */
    CUresult (*grow)(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                     struct gpushare_grown *answer);

    /* How often the waits of this process were cancelled. */
    uint64_t (*cancels)(void);

    void (*report_usage)(const struct gpushare_usage *usage);

    /*
     * Whether memory that is new has to come to the GPU although the gate is shut, and may. Under gs_memory_lock.
     * `promised`: there is room.
     */
    enum gs_reach (*reach)(bool promised, struct gs_slot **entered);

    /* Waits for the lease to be given back, at most for that time (ns). Ends early if the gate opens, or by an
     * interrupt. */
    bool (*await_released)(uint64_t patience);

    /* The footprint has no room after all: gives the lease up, so that the next submission asks again. */
    void (*give_up_lease)(enum gpushare_cause cause);

    /* False once the lease has been given back, after all that was submitted under it. */
    bool (*leased)(void);
};

const struct gs_promises *gs_promises(void);
void gs_promises_set(const struct gs_promises *promises);

#endif
