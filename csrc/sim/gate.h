/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate that every exported function passes (entries.py), so that during a checkpoint no thread is in the driver.
 * While open, it costs a load and two stores of the thread's own. The side that shuts it makes every thread's stores
 * visible (membarrier).
 */
#ifndef SIM_GATE_H
#define SIM_GATE_H

#include <stdbool.h>
#include <stddef.h>

/* A thread that is in the driver, or has called it before. */
struct sim_visitor {
    struct sim_visitor *next;
    unsigned depth; /* nested calls: a callback may call the driver again */
    bool taken;     /* its thread is alive */
};

extern __thread struct sim_visitor *sim_gate_visitor __attribute__((tls_model("initial-exec")));
extern unsigned sim_gate_is_shut;

/* NULL: out of memory. */
struct sim_visitor *sim_gate_register(void);
void sim_gate_wait(struct sim_visitor *visitor);

static inline struct sim_visitor *sim_gate_enter(void)
{
    struct sim_visitor *visitor = sim_gate_visitor;
    if (__builtin_expect(visitor == NULL, 0) && (visitor = sim_gate_register()) == NULL)
        return NULL;
    unsigned depth = visitor->depth;
    __atomic_store_n(&visitor->depth, depth + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (depth == 0 && __builtin_expect(__atomic_load_n(&sim_gate_is_shut, __ATOMIC_ACQUIRE) != 0, 0))
        sim_gate_wait(visitor);
    return visitor;
}

static inline void sim_gate_leave(struct sim_visitor *visitor)
{
    __atomic_store_n(&visitor->depth, visitor->depth - 1, __ATOMIC_RELEASE);
}

/* From now on no thread enters, but threads may still be inside. */
void sim_gate_shut(void);
bool sim_gate_is_empty(void);
void sim_gate_open(void);

/* In the child of a fork: opens the gate, because the child is not locked. */
void sim_gate_forget(void);

#endif
