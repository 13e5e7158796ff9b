/* SPDX-License-Identifier: BSD-3-Clause */
/* The slow side of the second gate. slots.c explains why the ordering is correct. */
#include "gate/awake.h"

#include "gate/keeper.h"

uint32_t gs_awake_shut;

static bool try_enter(struct gs_slot *slot)
{
    __atomic_store_n(&slot->calls, slot->calls + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gs_awake_shut, __ATOMIC_RELAXED) == 0)
        return true;
    __atomic_store_n(&slot->calls, slot->calls + 1, __ATOMIC_RELEASE);
    return false;
}

/* The gate may have been opened meanwhile. */
static CUresult await_open(void)
{
    bool shut = __atomic_load_n(&gs_awake_shut, __ATOMIC_ACQUIRE) != 0;
    return shut ? gs_keeper()->await_awake() : CUDA_SUCCESS;
}

CUresult gs_awake_enter_slow(struct gs_slot **called)
{
    *called = NULL;
    struct gs_slot *slot = gs_gate_slot();
    if (slot == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (slot->calls & 1) {
        slot->inner_calls++;
        return CUDA_SUCCESS;
    }
    while (!try_enter(slot)) {
        CUresult refused = await_open();
        if (refused != CUDA_SUCCESS)
            return refused;
    }
    *called = slot;
    return CUDA_SUCCESS;
}

void gs_awake_leave_slow(void)
{
    gs_gate_thread->inner_calls--;
}

struct gs_slot *gs_awake_pause(void)
{
    struct gs_slot *slot = gs_gate_thread;
    if (slot == NULL || (slot->calls & 1) == 0)
        return NULL;
    __atomic_store_n(&slot->calls, slot->calls + 1, __ATOMIC_RELEASE);
    return slot;
}

CUresult gs_awake_resume(struct gs_slot *paused, CUresult result)
{
    if (paused == NULL)
        return result;
    while (result == CUDA_SUCCESS) {
        if (try_enter(paused))
            return CUDA_SUCCESS;
        result = await_open();
    }
    /* This thread returns the error through the hook, which does not call the driver on its way. */
    __atomic_store_n(&paused->calls, paused->calls + 1, __ATOMIC_RELAXED);
    return result;
}

bool gs_awake_try_enter(struct gs_slot **called)
{
    *called = NULL;
    struct gs_slot *slot = gs_gate_slot();
    if (slot == NULL)
        return false;
    if (slot->calls & 1) {
        slot->inner_calls++;
        return true;
    }
    if (!try_enter(slot))
        return false;
    *called = slot;
    return true;
}

void gs_awake_shut_gate(void)
{
    __atomic_store_n(&gs_awake_shut, 1, __ATOMIC_SEQ_CST);
    gs_gate_fence();
}

void gs_awake_open_gate(void)
{
    __atomic_store_n(&gs_awake_shut, 0, __ATOMIC_SEQ_CST);
}

bool gs_awake_empty(void)
{
    for (const struct gs_slot *slot = gs_gate_slots(); slot != NULL; slot = slot->next)
        if (__atomic_load_n(&slot->calls, __ATOMIC_ACQUIRE) & 1)
            return false;
    return true;
}
