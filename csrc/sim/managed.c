/* SPDX-License-Identifier: BSD-3-Clause */
#include "managed.h"

#include "graph.h"
#include "segment.h"

#include <string.h>

struct sim_counters sim_counters_now;

void gpushare_sim_counters(struct sim_counters *counters, size_t size)
{
    memcpy(counters, &sim_counters_now, size < sizeof *counters ? size : sizeof *counters);
}

static void count(uint64_t *counter, uint64_t bytes)
{
    __atomic_add_fetch(counter, bytes, __ATOMIC_RELAXED);
}

struct sweep {
    unsigned device;
    uint64_t resident;
    const struct sim_range *spared;
    struct sim_range *oldest;
};

static void visit(struct sim_range *range, void *argument)
{
    struct sweep *sweep = argument;
    if (range->kind != SIM_RANGE_MANAGED || range->device != sweep->device || range->resident == 0)
        return;
    sweep->resident += range->resident;
    if (range != sweep->spared && (sweep->oldest == NULL || range->used_at < sweep->oldest->used_at))
        sweep->oldest = range;
}

static struct sweep sweep(unsigned device, const struct sim_range *spared)
{
    struct sweep result = {.device = device, .spared = spared};
    sim_ranges_each(visit, &result);
    return result;
}

/* Others took residency from this process without asking: its oldest ranges lost it. */
static void reconcile(unsigned device)
{
    uint64_t actual = sim_segment_managed_resident(device);
    for (;;) {
        struct sweep own = sweep(device, NULL);
        if (own.resident <= actual || own.oldest == NULL)
            return;
        uint64_t excess = own.resident - actual;
        own.oldest->resident -= excess < own.oldest->resident ? excess : own.oldest->resident;
    }
}

/* Makes a range resident as far as the device goes; returns how many bytes must move. Under the table's lock. */
static uint64_t admit(struct sim_range *range, unsigned device)
{
    range->used_at = sim_now();
    uint64_t missing = range->mapped - range->resident, moved = 0;
    while (missing > 0) {
        struct sweep own = sweep(device, range);
        uint64_t stolen;
        uint64_t older_than = own.oldest == NULL ? UINT64_MAX : own.oldest->used_at;
        uint64_t admitted = sim_segment_managed_admit(device, missing, older_than, &stolen);
        count(&sim_counters_now.stolen, stolen);
        range->resident += admitted;
        missing -= admitted;
        moved += admitted;
        if (missing == 0)
            break;
        if (own.oldest == NULL) {
            /* The range is larger than the room: it cycles through it, and every page of it faults each time. */
            return range->mapped;
        }
        uint64_t given = missing < own.oldest->resident ? missing : own.oldest->resident;
        own.oldest->resident -= given;
        sim_segment_managed_drop(device, given);
    }
    return moved;
}

void sim_managed_touch(unsigned device, const uint64_t *addresses, size_t number)
{
    uint64_t moved = 0;
    bool reconciled = false;
    for (size_t i = 0; i < number; i++) {
        pthread_rwlock_rdlock(&sim_ranges_lock);
        struct sim_range *range = sim_range_find(addresses[i]);
        bool managed = range != NULL && range->kind == SIM_RANGE_MANAGED;
        pthread_rwlock_unlock(&sim_ranges_lock);
        if (!managed)
            continue;
        pthread_rwlock_wrlock(&sim_ranges_lock);
        if (!reconciled)
            reconcile(device);
        reconciled = true;
        range = sim_range_find(addresses[i]);
        if (range != NULL && range->kind == SIM_RANGE_MANAGED && range->device == device)
            moved += admit(range, device);
        pthread_rwlock_unlock(&sim_ranges_lock);
    }
    if (moved == 0)
        return;
    count(&sim_counters_now.faulted, moved);
    sim_sleep_until(sim_segment_reserve(device, SIM_ENGINE_FAULT, moved, sim_config.fault_bandwidth));
}

void sim_managed_forget(struct sim_range *range)
{
    reconcile(range->device);
    sim_segment_managed_drop(range->device, range->resident);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && size > 0 &&
                (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE));
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_MANAGED, size, &base));
    *out = base;
    return CUDA_SUCCESS;
}

/* The managed range that holds [pointer, pointer + count), or NULL. Under the table's lock. */
static struct sim_range *find(CUdeviceptr pointer, size_t size)
{
    struct sim_range *range = sim_range_find(pointer);
    if (range == NULL || range->kind != SIM_RANGE_MANAGED || size > range->base + range->mapped - pointer)
        return NULL;
    return range;
}

static CUresult check(CUdeviceptr pointer, size_t size)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    bool found = size > 0 && find(pointer, size) != NULL;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct prefetch {
    uint64_t pointer, size;
    int destination;
};

static CUresult run_prefetch(struct sim_context *context, struct sim_op *op)
{
    const struct prefetch *prefetch = (const struct prefetch *)op->payload;
    enum sim_engine engine = prefetch->destination < 0 ? SIM_ENGINE_TO_HOST : SIM_ENGINE_TO_DEVICE;
    uint64_t moved = 0;
    unsigned device = context->device;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = find(prefetch->pointer, prefetch->size);
    if (range != NULL) {
        device = range->device;
        reconcile(device);
        range->prefetched = prefetch->destination;
        if (prefetch->destination < 0) {
            moved = prefetch->size < range->resident ? prefetch->size : range->resident;
            range->resident -= moved;
            sim_segment_managed_drop(device, moved);
        } else {
            moved = admit(range, device);
        }
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (moved == 0)
        return CUDA_SUCCESS;
    count(&sim_counters_now.prefetched, moved);
    sim_sleep_until(sim_segment_reserve(device, engine, moved, sim_config.bandwidth));
    return CUDA_SUCCESS;
}

static CUresult prefetch(CUdeviceptr pointer, size_t size, CUmemLocation location, CUstream handle,
                         enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(check(pointer, size));
    bool host = location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    SIM_REQUIRE(host || location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    if (!host && (location.id < 0 || (unsigned)location.id >= sim_segment_devices()))
        return CUDA_ERROR_INVALID_DEVICE;
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sim_op *op = sim_op_new(SIM_OP_COPY, sizeof(struct prefetch), run_prefetch);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct prefetch *)op->payload = (struct prefetch){pointer, size, host ? CU_DEVICE_CPU : location.id};
    return sim_stream_submit(stream, op, NULL);
}

static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           .id = device};
}

SIM_PAIR(cuMemPrefetchAsync, _ptsz, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream),
         prefetch(pointer, size, location_of(device), stream, meant))
SIM_PAIR(cuMemPrefetchAsync_v2, _ptsz,
         (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream stream),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, size, location, stream, meant))

static CUresult advise(CUdeviceptr pointer, size_t size, CUmem_advise advice, int location)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = size > 0 ? find(pointer, size) : NULL;
    if (range != NULL) {
        if (advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY)
            range->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
            range->preferred = location;
        if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
            range->preferred = CU_DEVICE_INVALID;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUdevice device)
{
    return advise(pointer, size, advice, device);
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location)
{
    return advise(pointer, size, advice, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU);
}

static CUresult range_attribute(void *data, size_t data_size, CUmem_range_attribute which, CUdeviceptr pointer,
                                size_t size)
{
    SIM_REQUIRE(data != NULL && data_size >= sizeof(int));
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    const struct sim_range *range = find(pointer, size);
    if (range == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (which == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY)
        *(int *)data = range->read_mostly;
    else if (which == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION)
        *(int *)data = range->preferred;
    else if (which == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)
        *(int *)data = range->prefetched;
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemRangeGetAttribute(void *data, size_t data_size, CUmem_range_attribute which, CUdeviceptr pointer,
                                size_t size)
{
    SIM_ENTER();
    return range_attribute(data, data_size, which, pointer, size);
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *which, size_t number,
                                 CUdeviceptr pointer, size_t size)
{
    SIM_ENTER();
    SIM_REQUIRE(data != NULL && sizes != NULL && which != NULL && number > 0);
    for (size_t i = 0; i < number; i++)
        SIM_TRY(range_attribute(data[i], sizes[i], which[i], pointer, size));
    return CUDA_SUCCESS;
}
