/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate's state and its slots.
 *
 * Why this is correct: a thread that enters stores `passes` (odd) and then loads the state. The side that shuts the
 * gate stores the state and then loads every `passes`. For one of the two to see the other's store, each needs a full
 * fence between its store and its load. The entering side runs at every launch, so it has only a compiler barrier.
 * membarrier(2) on the shutting side makes every running thread of the process execute the fence. Checking only the
 * state (without `passes`) would let a launch slip through after the shutting side has looked.
 */
#include "gate/slots.h"

#include "base/lock.h"
#include "compat/membarrier.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t gs_gate_word = GS_GATE_PLAIN;
__thread struct gs_slot *gs_gate_thread __attribute__((tls_model("initial-exec")));

static struct {
    struct gs_mutex lock;
    struct gs_slot *slots; /* all slots that were ever created; slots of ended threads are reused */
    pthread_key_t at_thread_exit;
    pthread_once_t once;
    bool has_membarrier;
    void *fence_page;
} gate = {.lock = GS_MUTEX(GS_RANK_GATE), .once = PTHREAD_ONCE_INIT};

static void leave_thread(void *slot)
{
    /* Calls by destructors that run after this one take the slow path and get a slot again. */
    gs_gate_thread = NULL;
    ((struct gs_slot *)slot)->inner_calls = 0;
    /* the thread may end during a call */
    __atomic_and_fetch(&((struct gs_slot *)slot)->calls, ~UINT64_C(1), __ATOMIC_RELEASE);
    __atomic_store_n(&((struct gs_slot *)slot)->free_for_reuse, 1, __ATOMIC_RELEASE);
}

static void make_key(void)
{
    pthread_key_create(&gate.at_thread_exit, leave_thread);
}

struct gs_slot *gs_gate_slot(void)
{
    if (gs_gate_thread != NULL)
        return gs_gate_thread;
    pthread_once(&gate.once, make_key);
    gs_mutex_lock(&gate.lock);
    struct gs_slot *slot = gate.slots;
    while (slot != NULL && !__atomic_load_n(&slot->free_for_reuse, __ATOMIC_ACQUIRE))
        slot = slot->next;
    if (slot == NULL) {
        slot = calloc(1, sizeof(*slot));
        if (slot != NULL) {
            slot->next = gate.slots;
            __atomic_store_n(&gate.slots, slot, __ATOMIC_RELEASE);
        }
    } else {
        slot->free_for_reuse = 0;
    }
    gs_mutex_unlock(&gate.lock);
    if (slot != NULL) {
        pthread_setspecific(gate.at_thread_exit, slot);
        gs_gate_thread = slot;
    }
    return slot;
}

bool gs_gate_try_enter(struct gs_slot *slot, uint32_t highest)
{
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) <= highest)
        return true;
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELEASE);
    return false;
}

void gs_gate_enter_shut(void)
{
    struct gs_slot *slot = gs_gate_thread;
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_SEQ_CST);
}

bool gs_gate_enter_shut_leased(struct gs_slot **entered)
{
    struct gs_slot *slot = gs_gate_slot();
    *entered = slot == NULL || slot->passes & 1 ? NULL : slot;
    if (*entered != NULL)
        gs_gate_enter_shut();
    return slot != NULL;
}

void gs_gate_leave_shut(void)
{
    struct gs_slot *slot = gs_gate_thread;
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELEASE);
}

bool gs_gate_enter_leased(struct gs_slot **entered)
{
    *entered = NULL;
    struct gs_slot *slot = gs_gate_slot();
    if (slot == NULL)
        return false;
    if (slot->passes & 1)
        return true;
    __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) > GS_GATE_HELD) {
        gs_gate_leave_leased(slot);
        return false;
    }
    *entered = slot;
    return true;
}

void gs_gate_leave_leased(struct gs_slot *entered)
{
    /* Restores the earlier value: nothing was submitted. */
    if (entered != NULL)
        __atomic_store_n(&entered->passes, entered->passes - 1, __ATOMIC_RELEASE);
}

void gs_gate_prepare(void)
{
    gate.has_membarrier = syscall(SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0) == 0;
    if (!gate.has_membarrier && gate.fence_page == NULL)
        gate.fence_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/*
 * Without membarrier (Linux before 4.14, some sandboxes): removing write access from a page in use interrupts every CPU
 * that runs a thread of this process, to flush its TLB. The interrupt is a full fence. Userspace RCU and folly rely on
 * this, too.
 */
void gs_gate_fence(void)
{
    if (gate.has_membarrier && syscall(SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0) == 0)
        return;
    *(volatile char *)gate.fence_page = 1;
    mprotect(gate.fence_page, 4096, PROT_READ);
    mprotect(gate.fence_page, 4096, PROT_READ | PROT_WRITE);
}

void gs_gate_shut(void)
{
    __atomic_store_n(&gs_gate_word, GS_GATE_SHUT, __ATOMIC_SEQ_CST);
    gs_gate_fence();
}

const struct gs_slot *gs_gate_slots(void)
{
    return __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE);
}

bool gs_gate_empty(void)
{
    for (struct gs_slot *slot = __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE); slot != NULL; slot = slot->next)
        if (__atomic_load_n(&slot->passes, __ATOMIC_ACQUIRE) & 1)
            return false;
    return true;
}

uintptr_t gs_gate_last_work(void)
{
    uintptr_t last = GS_WORK_NONE;
    for (struct gs_slot *slot = __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE); slot != NULL; slot = slot->next) {
        uintptr_t work = __atomic_load_n(&slot->work, __ATOMIC_RELAXED);
        if (work > last)
            last = work;
    }
    return last;
}

void gs_gate_forget_functions(void)
{
    for (struct gs_slot *slot = __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE); slot != NULL; slot = slot->next)
        if (gs_work_is_function(__atomic_load_n(&slot->work, __ATOMIC_RELAXED)))
            __atomic_store_n(&slot->work, GS_WORK_KERNEL, __ATOMIC_RELAXED);
}

uint64_t gs_gate_passes(void)
{
    uint64_t sum = 0;
    for (struct gs_slot *slot = __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE); slot != NULL; slot = slot->next)
        sum += __atomic_load_n(&slot->passes, __ATOMIC_ACQUIRE);
    return sum;
}

uint64_t gs_gate_submissions(void)
{
    uint64_t sum = 0;
    for (struct gs_slot *slot = __atomic_load_n(&gate.slots, __ATOMIC_ACQUIRE); slot != NULL; slot = slot->next)
        sum += __atomic_load_n(&slot->passes, __ATOMIC_ACQUIRE) & ~(uint64_t)1;
    return sum;
}

void gs_gate_after_fork(void)
{
    gs_mutex_after_fork(&gate.lock);
    for (struct gs_slot *slot = gate.slots; slot != NULL; slot = slot->next) {
        slot->passes &= ~(uint64_t)1;
        slot->nested = 0;
        slot->paced = false;
        if (slot != gs_gate_thread) {
            slot->calls &= ~(uint64_t)1;
            slot->inner_calls = 0;
        }
        if (slot != gs_gate_thread)
            slot->free_for_reuse = 1;
    }
    __atomic_store_n(&gs_gate_word, GS_GATE_PLAIN, __ATOMIC_SEQ_CST);
}
