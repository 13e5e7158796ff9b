/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate.h"

#include "../compat/membarrier.h"
#include "base/clock.h"
#include "counters.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STORES_NS 10000000 /* the wait without membarrier: by then every store is visible */

__thread struct sim_visitor *sim_gate_visitor;
unsigned sim_gate_is_shut;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_visitor *visitors; /* recycled, never freed */
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_thread(void *argument)
{
    struct sim_visitor *visitor = argument;
    sim_gate_visitor = NULL;
    pthread_mutex_lock(&lock);
    visitor->taken = false;
    pthread_mutex_unlock(&lock);
}

static void make_key(void)
{
    pthread_key_create(&key, end_thread);
}

struct sim_visitor *sim_gate_register(void)
{
    pthread_once(&once, make_key);
    pthread_mutex_lock(&lock);
    struct sim_visitor *visitor = visitors;
    while (visitor != NULL && visitor->taken)
        visitor = visitor->next;
    if (visitor == NULL && (visitor = calloc(1, sizeof *visitor)) != NULL) {
        visitor->next = visitors;
        visitors = visitor;
    }
    if (visitor != NULL)
        visitor->taken = true;
    pthread_mutex_unlock(&lock);
    if (visitor != NULL)
        pthread_setspecific(key, visitor);
    sim_gate_visitor = visitor;
    return visitor;
}

void sim_gate_wait(struct sim_visitor *visitor)
{
    __atomic_add_fetch(&sim_counters_now.waiting, 1, __ATOMIC_RELAXED);
    do {
        __atomic_store_n(&visitor->depth, 0, __ATOMIC_RELEASE);
        while (__atomic_load_n(&sim_gate_is_shut, __ATOMIC_ACQUIRE) != 0)
            syscall(SYS_futex, &sim_gate_is_shut, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
        __atomic_store_n(&visitor->depth, 1, __ATOMIC_SEQ_CST);
    } while (__atomic_load_n(&sim_gate_is_shut, __ATOMIC_SEQ_CST) != 0);
    __atomic_sub_fetch(&sim_counters_now.waiting, 1, __ATOMIC_RELAXED);
}

void sim_gate_shut(void)
{
    __atomic_store_n(&sim_gate_is_shut, 1, __ATOMIC_SEQ_CST);
    if (syscall(SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0) != 0 ||
        syscall(SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0) != 0)
        sim_sleep_until(sim_now() + STORES_NS);
}

bool sim_gate_is_empty(void)
{
    bool empty = true;
    pthread_mutex_lock(&lock);
    for (struct sim_visitor *visitor = visitors; visitor != NULL && empty; visitor = visitor->next)
        empty = __atomic_load_n(&visitor->depth, __ATOMIC_ACQUIRE) == 0;
    pthread_mutex_unlock(&lock);
    return empty;
}

void sim_gate_open(void)
{
    __atomic_store_n(&sim_gate_is_shut, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &sim_gate_is_shut, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void sim_gate_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    sim_gate_is_shut = 0;
    sim_counters_now.waiting = 0;
}
