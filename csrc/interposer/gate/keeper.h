/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How threads wait at the gates. The client registers these functions before it shuts a gate for the first time.
 * Threads call them only if they found a gate shut.
 */
#ifndef GPUSHARE_GATE_KEEPER_H
#define GPUSHARE_GATE_KEEPER_H

#include "driver.h"
#include "gate/work.h"

#include <stdbool.h>

struct gs_keeper {
    /*
     * Called by a thread that did not find the gate open. CUDA_SUCCESS: try again, or (if *entered) the thread is
     * inside for one submission. Returns GS_ERROR_CANCELLED (client/waits.h) when the user interrupts.
     */
    CUresult (*acquire)(bool *entered);

    /*
     * Called by a thread that found the gate paced. Waits outside the gate until the submission is admitted, or the
     * gate is no longer paced. Returns GS_ERROR_CANCELLED when the user interrupts.
     */
    CUresult (*pace)(struct gs_submission *submission);

    /*
     * Called by a thread that found the second gate shut. Asks the scheduler to wake this process. CUDA_SUCCESS: try
     * again. Otherwise GS_ERROR_CANCELLED when the user interrupts, or the error if the process cannot be woken now.
     */
    CUresult (*await_awake)(void);
};

/* Call it after an acquiring load of the gate's state that found the gate shut. Then a keeper is registered. */
const struct gs_keeper *gs_keeper(void);
void gs_keeper_set(const struct gs_keeper *keeper);

#endif
