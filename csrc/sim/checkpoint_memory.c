/* SPDX-License-Identifier: BSD-3-Clause */
#include "checkpoint_memory.h"

#include "graph_memory.h"
#include "ranges.h"
#include "vmm.h"

#include <sys/mman.h>

static void look_for_others(struct sim_range *range, void *argument)
{
    if (range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_IPC || range->fd >= 0)
        *(bool *)argument = false;
}

bool sim_memory_is_own(void)
{
    bool own = true;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    sim_ranges_each(look_for_others, &own);
    own = own && !sim_allocations_are_shared();
    pthread_rwlock_unlock(&sim_ranges_lock);
    return own;
}

struct reaching {
    bool reach, done;
};

static void reach_range(struct sim_range *range, void *argument)
{
    struct reaching *reaching = argument;
    if (range->kind == SIM_RANGE_RESERVATION)
        reaching->done = sim_mappings_reach(range, reaching->reach) && reaching->done;
    else if (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_POOL || range->kind == SIM_RANGE_ARRAY)
        reaching->done = mprotect((void *)(uintptr_t)range->base, range->mapped,
                                  reaching->reach ? PROT_READ | PROT_WRITE : PROT_NONE) == 0 &&
                         reaching->done;
}

bool sim_memory_reach(bool reach)
{
    struct reaching reaching = {reach, sim_graph_memory_reach(reach)};
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_ranges_each(reach_range, &reaching);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return reaching.done;
}

static void count_page_locked(struct sim_range *range, void *argument)
{
    if (range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_REGISTERED)
        *(uint64_t *)argument += range->size;
}

uint64_t sim_memory_page_locked(void)
{
    uint64_t bytes = 0;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    sim_ranges_each(count_page_locked, &bytes);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return bytes;
}

static void forget_reservation(struct sim_range *range, void *argument)
{
    (void)argument;
    if (range->kind == SIM_RANGE_RESERVATION && range->mappings == NULL)
        range->forgotten = true;
}

void sim_memory_forget_reservations(void)
{
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_ranges_each(forget_reservation, NULL);
    pthread_rwlock_unlock(&sim_ranges_lock);
}
