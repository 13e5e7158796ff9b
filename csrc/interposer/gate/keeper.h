/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How threads wait at the gates. The client registers these functions before it first shuts a gate, and threads call
 * them only if they found one shut.
 */
#ifndef GPUSHARE_GATE_KEEPER_H
#define GPUSHARE_GATE_KEEPER_H

#include "driver.h"
#include "gate/work.h"

#include <stdbool.h>

struct gs_keeper {
    /*
     * Called by a thread that found the gate not open. CUDA_SUCCESS: try again, or (*entered) it is inside, for this
     * one submission. Ends with GS_ERROR_CANCELLED (client/waits.h) when the user interrupts.
     */
    CUresult (*acquire)(bool *entered);

    /*
     * Called by a thread that found the gate paced. Waits outside it until the submission may go in (it is admitted
     * then), or the gate is not paced any more. Ends as `acquire` does when the user interrupts.
     */
    CUresult (*pace)(struct gs_submission *submission);

    /*
     * Called by a thread that found the second gate shut. CUDA_SUCCESS: try again. Asks to be woken, and ends as
     * `acquire` does when the user interrupts, or when the process cannot be woken now.
     */
    CUresult (*await_awake)(void);
};

/* To be called after a load of the gate's word that acquires what the side that shut it had done: there is a keeper. */
const struct gs_keeper *gs_keeper(void);
void gs_keeper_set(const struct gs_keeper *keeper);

#endif
