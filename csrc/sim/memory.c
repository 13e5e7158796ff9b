/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory.h"

#include "base/clock.h"
#include "counters.h"
#include "ports.h"
#include "segment/memory.h"

#include <unistd.h>

CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, size_t size, uint64_t *base)
{
    uint64_t bytes = sim_round_up(size, SIM_PAGE);
    context = context->parent != NULL ? context->parent : context;
    bool charged = kind == SIM_RANGE_DEVICE || kind == SIM_RANGE_ARRAY;
    if (bytes < size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (charged && !sim_segment_charge(context->device, SIM_CHARGE_MEMORY, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_reserve(kind, 0, size, bytes >= SIM_GRANULARITY ? SIM_GRANULARITY : SIM_PAGE);
    if (range != NULL) {
        range->context = context;
        range->device = context->device;
        *base = range->base;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (range != NULL && sim_memory_back(*base, bytes))
        return CUDA_SUCCESS;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    if (range != NULL)
        sim_range_remove(range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (charged)
        sim_segment_refund(context->device, SIM_CHARGE_MEMORY, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Called with the lock held. */
static void release(struct sim_range *range)
{
    if (range->kind == SIM_RANGE_MANAGED)
        sim_ports.forget_managed(range);
    else if (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_ARRAY)
        sim_segment_refund(range->device, SIM_CHARGE_MEMORY, range->mapped);
    if (range->pool != NULL)
        sim_ports.take_back(range);
    if (range->fd >= 0)
        close(range->fd);
    if (range->kind != SIM_RANGE_REGISTERED)
        sim_memory_unback(range->base, range->mapped);
    sim_range_remove(range);
}

CUresult sim_memory_free(uint64_t base)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(base);
    if (range != NULL && range->base == base && range->kind != SIM_RANGE_RESERVATION) {
        release(range);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

static void release_if_of(struct sim_range *range, void *context)
{
    if (range->context == context && range->pool != NULL)
        range->context = NULL; /* memory of a pool belongs to the device */
    else if (range->context == context)
        release(range);
}

void sim_memory_release_context(struct sim_context *context)
{
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_ranges_each_backwards(release_if_of, context);
    pthread_rwlock_unlock(&sim_ranges_lock);
}

/* Page-locking takes the caller's time. Several threads may do it at once. */
void sim_memory_page_lock(uint64_t bytes)
{
    __atomic_add_fetch(&sim_counters_now.page_locked, bytes, __ATOMIC_RELAXED);
    if (sim_config.page_lock_bandwidth == 0)
        return;
    uint64_t duration = sim_duration(bytes, sim_config.page_lock_bandwidth);
    __atomic_add_fetch(&sim_counters_now.page_lock_ns, duration, __ATOMIC_RELAXED);
    sim_sleep_until(sim_now() + duration);
}

void sim_memory_page_unlock(uint64_t bytes)
{
    if (sim_config.page_unlock_bandwidth != 0)
        sim_sleep_until(sim_now() + sim_duration(bytes, sim_config.page_unlock_bandwidth));
}
