/* SPDX-License-Identifier: BSD-3-Clause */
/* The slow side of the gate: for threads that find it paced, held or shut. */
#include "gate/enter.h"

#include "gate/capture.h"
#include "gate/failures.h"
#include "gate/keeper.h"
#include "gate/meter.h"
#include "gate/pace.h"

/*
 * A paced thread waits outside the gate, so that the gate can be shut meanwhile. Then it enters like any thread: a
 * store of `passes` and a load of the gate's state. *entered: it is inside.
 */
static CUresult enter_paced(struct gs_slot *slot, bool *entered)
{
    *entered = false;
    CUresult refused = gs_keeper()->pace(&slot->submission);
    if (refused != CUDA_SUCCESS || !slot->submission.admitted)
        return refused;
    *entered = gs_gate_try_enter(slot, GS_GATE_PACED);
    if (!*entered) {
        gs_pace_return(&slot->submission, NULL);
        return CUDA_SUCCESS;
    }
    slot->paced = true;
    gs_meter_begin(&slot->submission);
    return CUDA_SUCCESS;
}

CUresult gs_gate_enter_slow(struct gs_slot **entered, CUstream stream, enum gs_stream_kind kind, uintptr_t work,
                            size_t size)
{
    *entered = NULL;
    struct gs_slot *slot = gs_gate_slot();
    if (slot == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (slot->passes & 1) {
        slot->nested++;
        return CUDA_SUCCESS;
    }
    for (;;) {
        if (gs_gate_try_enter(slot, gs_work_counts(work) ? GS_GATE_OPEN : GS_GATE_PACED)) {
            if (gs_work_counts(work))
                __atomic_store_n(&slot->work, work, __ATOMIC_RELAXED);
            else if (work == GS_WORK_ORDER)
                gs_meter_order(stream, kind);
            *entered = slot;
            return CUDA_SUCCESS;
        }
        /* A submission to a capturing stream is recorded, not run. Waiting here could deadlock the capture. */
        if (gs_capture_includes(stream, kind))
            return CUDA_SUCCESS;
        bool paces = __atomic_load_n(&gs_gate_word, __ATOMIC_ACQUIRE) == GS_GATE_PACED;
        /*
         * A call that the driver would refuse anyway does not wait for memory. If the current context has been
         * destroyed, the call may still concern another context, the one of its stream.
         */
        CUresult refused = paces ? gs_context_known_failure() : gs_context_ask_failure();
        if (refused != CUDA_SUCCESS && refused != CUDA_ERROR_CONTEXT_IS_DESTROYED)
            return refused;
        if (paces) {
            bool inside;
            __atomic_store_n(&slot->work, work, __ATOMIC_RELAXED);
            slot->submission = (struct gs_submission){.work = work, .size = size, .stream = stream, .kind = kind};
            refused = enter_paced(slot, &inside);
            if (inside)
                return CUDA_SUCCESS;
        } else {
            bool inside;
            refused = gs_keeper()->acquire(&inside);
            if (inside) {
                __atomic_store_n(&slot->work, work, __ATOMIC_RELAXED);
                *entered = slot;
                return CUDA_SUCCESS;
            }
        }
        if (refused != CUDA_SUCCESS)
            return refused;
    }
}

void gs_gate_leave_slow(void)
{
    struct gs_slot *slot = gs_gate_thread;
    if (slot == NULL || (slot->passes & 1) == 0)
        return; /* it was let through to record into a capture */
    if (slot->nested != 0) {
        slot->nested--;
        return;
    }
    if (!slot->paced)
        return;
    slot->paced = false;
    gs_meter_end(&slot->submission);
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELEASE);
}
