/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What memory needs from the scheduler: promises of room, and the lease under which the room is available. The client
 * provides these functions before the process is attached. None of them is called before.
 */
#ifndef GPUSHARE_MEMORY_PROMISES_H
#define GPUSHARE_MEMORY_PROMISES_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct gs_slot;

enum gs_reach {
    GS_REACH_NONE, /* no lease is held, or the gate is open: no work can use memory that is missing */
    GS_REACH_NOW,  /* the caller is inside the gate: the lease is kept until gs_gate_leave_leased */
    GS_REACH_LATER /* the scheduler has promised no room */
};

struct gs_promises {
    /*
     * Asks the scheduler to promise more memory, and waits for the answer. `least` is what must be promised, and `most`
     * what would be best. Returns GS_ERROR_CANCELLED (client/waits.h) if waits were cancelled since `cancels` was read
     * with the function of that name. Answers GPUSHARE_GROWTH_SWAPPED if no scheduler answers. `urgent`: running work
     * may need the memory before the lease can be released. After GROWTH_SWAPPED, the lease, if there was one, has been
     * released.
     */
    CUresult (*grow)(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                     struct gpushare_grown *answer);

    /* How often the waits of this process were cancelled. */
    uint64_t (*cancels)(void);

    void (*report_usage)(const struct gpushare_usage *usage);

    /*
     * Whether new memory must and may be on the GPU although the gate is shut. `promised`: there is room. Called under
     * gs_memory_lock.
     */
    enum gs_reach (*reach)(bool promised, struct gs_slot **entered);

    /* Waits until the lease is released, for up to that time (ns). Ends early if the gate opens, or by an interrupt. */
    bool (*await_released)(uint64_t patience);

    /* The footprint has no room after all: releases the lease, so that the next submission requests a new one. */
    void (*release_lease)(enum gpushare_cause cause);

    /* False once the lease has been released, after all work that was submitted under it. */
    bool (*leased)(void);
};

const struct gs_promises *gs_promises(void);
void gs_promises_set(const struct gs_promises *promises);

#endif
