/* SPDX-License-Identifier: BSD-3-Clause */
#include "managed.h"

#include "base/clock.h"
#include "capture.h"
#include "context.h"
#include "counters.h"
#include "inject.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/engines.h"
#include "segment/memory.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static void count(uint64_t *counter, uint64_t bytes)
{
    __atomic_add_fetch(counter, bytes, __ATOMIC_RELAXED);
}

/* The unit in which managed memory moves. */
#define CHUNK SIM_GRANULARITY

struct place {
    short type, id; /* CUmemLocationType */
};

struct sim_chunk {
    bool resident, read_mostly, discarded;
    struct place preferred, prefetched;
    uint32_t accessed_by; /* a bit for each device, then one for the host */
};

#define HOST_BIT SIM_MAX_DEVICES

struct span {
    size_t first, end;
};

struct cost {
    uint64_t moved, written;
};

static size_t chunk_count(const struct sim_range *range)
{
    return (range->mapped + CHUNK - 1) / CHUNK;
}

static uint64_t chunk_size(const struct sim_range *range, size_t index)
{
    uint64_t rest = range->mapped - index * CHUNK;
    return rest < CHUNK ? rest : CHUNK;
}

static struct place place_of(CUmemLocation location)
{
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return (struct place){CU_MEM_LOCATION_TYPE_DEVICE, (short)location.id};
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return (struct place){CU_MEM_LOCATION_TYPE_HOST_NUMA, (short)location.id};
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return (struct place){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    default:
        return (struct place){CU_MEM_LOCATION_TYPE_HOST, CU_DEVICE_CPU};
    }
}

static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           .id = device};
}

/* False if there is no memory for the chunks. Called with the table's lock held for writing. */
static bool have_chunks(struct sim_range *range)
{
    if (range->chunks != NULL)
        return true;
    range->chunks = calloc(chunk_count(range), sizeof *range->chunks);
    if (range->chunks != NULL && range->preferred != CU_DEVICE_INVALID)
        for (size_t i = 0; i < chunk_count(range); i++)
            range->chunks[i].preferred = place_of(location_of(range->preferred));
    return range->chunks != NULL;
}

static struct span span_of(const struct sim_range *range, uint64_t address, uint64_t size)
{
    uint64_t begin = address - range->base, end = begin + size;
    if (size > range->mapped || end > range->mapped)
        end = range->mapped;
    return (struct span){begin / CHUNK, (end + CHUNK - 1) / CHUNK};
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

/*
 * Evicts at least that many bytes of a range from the device, except in the spared span, as far as the range has them.
 * Returns how many bytes were evicted.
 */
static uint64_t push_out(struct sim_range *range, uint64_t bytes, struct span spared, struct cost *cost)
{
    uint64_t freed = 0;
    for (size_t i = 0; i < chunk_count(range) && freed < bytes; i++) {
        struct sim_chunk *chunk = &range->chunks[i];
        if (!chunk->resident || (i >= spared.first && i < spared.end))
            continue;
        chunk->resident = false;
        freed += chunk_size(range, i);
        if (!chunk->read_mostly && !chunk->discarded)
            cost->written += chunk_size(range, i);
    }
    range->resident -= freed;
    return freed;
}

/*
 * Other processes have evicted memory of this process and have spent the time for it. Marks the least recently used
 * ranges as evicted.
 */
static void reconcile(unsigned device)
{
    const struct span nothing = {0, 0};
    uint64_t actual = sim_segment_managed_resident(device);
    for (;;) {
        struct sweep own = sweep(device, NULL);
        if (own.resident <= actual || own.oldest == NULL) {
            if (own.resident < actual) /* whole chunks were evicted */
                sim_segment_managed_drop(device, actual - own.resident);
            return;
        }
        struct cost theirs = {0, 0};
        push_out(own.oldest, own.resident - actual, nothing, &theirs);
    }
}

/*
 * Makes the missing part of a span resident, as far as the device permits. Called with the table's lock held for
 * writing.
 */
static struct cost admit(struct sim_range *range, struct span span, const bool *skipped)
{
    struct cost cost = {0, 0};
    uint64_t missing = 0, credit = 0, all = 0, all_written = 0;
    range->used_at = sim_now();
    for (size_t i = span.first; i < span.end; i++) {
        const struct sim_chunk *chunk = &range->chunks[i];
        if (skipped != NULL && skipped[i - span.first])
            continue;
        all += chunk_size(range, i);
        all_written += chunk->read_mostly ? 0 : chunk_size(range, i);
        missing += chunk->resident ? 0 : chunk_size(range, i);
    }
    while (missing > 0) {
        struct sweep own = sweep(range->device, range);
        uint64_t stolen;
        uint64_t older_than = own.oldest == NULL ? UINT64_MAX : own.oldest->used_at;
        credit += sim_segment_managed_admit(range->device, missing - credit, older_than, &stolen);
        count(&sim_counters_now.stolen, stolen);
        cost.written += stolen;
        for (size_t i = span.first; i < span.end; i++) {
            struct sim_chunk *chunk = &range->chunks[i];
            uint64_t size = chunk_size(range, i);
            if (chunk->resident || size > credit || (skipped != NULL && skipped[i - span.first]))
                continue;
            chunk->resident = true;
            range->resident += size;
            cost.moved += chunk->discarded ? 0 : size;
            chunk->discarded = false;
            credit -= size;
            missing -= size;
        }
        if (missing == 0)
            break;
        struct sim_range *victim = own.oldest != NULL ? own.oldest : range;
        uint64_t freed = push_out(victim, missing - credit, victim == range ? span : (struct span){0, 0}, &cost);
        sim_segment_managed_drop(range->device, freed);
        if (freed == 0) {
            /* The span is larger than the room, so it is cycled through the room, and every page faults each time. */
            cost = (struct cost){all, all_written};
            break;
        }
    }
    sim_segment_managed_drop(range->device, credit);
    return cost;
}

/* Waits for the time of a cost. Moves to and from the device overlap. */
static void pay(unsigned device, struct cost cost, enum sim_engine engine, uint64_t bandwidth)
{
    uint64_t until = 0;
    if (cost.moved > 0)
        until = sim_engine_use(device, engine, cost.moved, bandwidth);
    if (cost.written > 0) {
        count(&sim_counters_now.written_back, cost.written);
        uint64_t out = sim_engine_use(device, SIM_ENGINE_TO_HOST, cost.written, sim_config.bandwidth);
        until = out > until ? out : until;
    }
    sim_sleep_until(until);
}

/* Whether a device accesses a chunk over the bus, so that the chunk does not move. */
static bool is_remote(const struct sim_chunk *chunk, unsigned device)
{
    bool at_home =
        chunk->preferred.type == CU_MEM_LOCATION_TYPE_HOST || chunk->preferred.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    bool mapped = chunk->preferred.type == CU_MEM_LOCATION_TYPE_INVALID && (chunk->accessed_by >> device & 1) != 0;
    return !chunk->resident && !chunk->read_mostly && (at_home || mapped);
}

static struct cost touch(struct sim_range *range, struct span span, uint64_t *remote)
{
    bool *skipped = calloc(span.end - span.first, sizeof *skipped);
    for (size_t i = span.first; i < span.end && skipped != NULL; i++) {
        skipped[i - span.first] = is_remote(&range->chunks[i], range->device);
        *remote += skipped[i - span.first] ? chunk_size(range, i) : 0;
        range->chunks[i].discarded = range->chunks[i].discarded && !range->chunks[i].resident;
    }
    struct cost cost = admit(range, span, skipped);
    free(skipped);
    return cost;
}

static void touch_all(unsigned device, const uint64_t *addresses, const uint64_t *sizes, size_t number)
{
    struct cost cost = {0, 0};
    uint64_t remote = 0;
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
        if (range != NULL && range->kind == SIM_RANGE_MANAGED && range->device == device && have_chunks(range)) {
            struct span span =
                sizes != NULL ? span_of(range, addresses[i], sizes[i]) : (struct span){0, chunk_count(range)};
            struct cost one = touch(range, span, &remote);
            cost.moved += one.moved;
            cost.written += one.written;
        }
        pthread_rwlock_unlock(&sim_ranges_lock);
    }
    count(&sim_counters_now.faulted, cost.moved);
    count(&sim_counters_now.remote, remote);
    uint64_t until = remote == 0 ? 0 : sim_engine_use(device, SIM_ENGINE_TO_DEVICE, remote, sim_config.bandwidth);
    pay(device, cost, SIM_ENGINE_FAULT, sim_config.fault_bandwidth);
    sim_sleep_until(until);
}

void sim_managed_touch(unsigned device, const uint64_t *addresses, size_t number)
{
    touch_all(device, addresses, NULL, number);
}

void sim_managed_touch_bytes(unsigned device, uint64_t address, uint64_t size)
{
    touch_all(device, &address, &size, 1);
}

void sim_managed_forget(struct sim_range *range)
{
    reconcile(range->device);
    sim_segment_managed_drop(range->device, range->resident);
    free(range->chunks);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    SIM_INJECT(cuMemAllocManaged);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && size > 0 &&
                (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE));
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_MANAGED, size, &base));
    *out = base;
    return CUDA_SUCCESS;
}

/* The managed range that contains [pointer, pointer + size), or NULL. Called with the table's lock held. */
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
    struct place place;
    bool discard, move;
};

struct batch {
    size_t number;
    struct prefetch items[];
};

static bool is_host(struct place place)
{
    return place.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Called with the table's lock held for writing. */
static void discard(struct sim_range *range, const struct prefetch *item)
{
    uint64_t end = item->pointer + item->size;
    for (size_t i = 0; i < chunk_count(range); i++) {
        uint64_t at = range->base + i * CHUNK;
        if (at >= item->pointer && at + chunk_size(range, i) <= end)
            range->chunks[i].discarded = true;
    }
    sim_memory_poison((void *)(uintptr_t)item->pointer, item->size);
}

/* Called with the table's lock held for writing. */
static struct cost move(struct sim_range *range, const struct prefetch *item)
{
    struct span span = span_of(range, item->pointer, item->size);
    struct cost cost = {0, 0};
    for (size_t i = span.first; i < span.end; i++)
        range->chunks[i].prefetched = item->place;
    if (!is_host(item->place)) {
        cost = admit(range, span, NULL);
    } else {
        uint64_t left = 0;
        for (size_t i = span.first; i < span.end; i++) {
            struct sim_chunk *chunk = &range->chunks[i];
            if (!chunk->resident)
                continue;
            chunk->resident = false;
            left += chunk_size(range, i);
            cost.moved += chunk->read_mostly || chunk->discarded ? 0 : chunk_size(range, i);
        }
        range->resident -= left;
        sim_segment_managed_drop(range->device, left);
    }
    for (size_t i = span.first; i < span.end; i++)
        range->chunks[i].discarded = false;
    return cost;
}

static CUresult run_batch(struct sim_context *context, struct sim_op *op)
{
    const struct batch *batch = (const struct batch *)op->payload;
    for (size_t i = 0; i < batch->number; i++) {
        const struct prefetch *item = &batch->items[i];
        struct cost cost = {0, 0};
        unsigned device = context->device;
        pthread_rwlock_wrlock(&sim_ranges_lock);
        struct sim_range *range = find(item->pointer, item->size);
        if (range != NULL && have_chunks(range)) {
            device = range->device;
            reconcile(device);
            if (item->discard)
                discard(range, item);
            if (item->move)
                cost = move(range, item);
        }
        pthread_rwlock_unlock(&sim_ranges_lock);
        count(&sim_counters_now.prefetched, cost.moved);
        pay(device, cost, is_host(item->place) ? SIM_ENGINE_TO_HOST : SIM_ENGINE_TO_DEVICE, sim_config.bandwidth);
    }
    return CUDA_SUCCESS;
}

static CUresult check_location(CUmemLocation location)
{
    bool host = location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    SIM_REQUIRE(host || location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    if (!host && (location.id < 0 || (unsigned)location.id >= sim_segment_devices()))
        return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

struct request {
    const CUdeviceptr *pointers;
    const size_t *sizes;
    size_t number;
    const CUmemLocation *locations; /* NULL: no memory moves */
    const size_t *firsts;           /* the index of the first range for each location */
    size_t location_count;
    bool discard;
};

static CUresult submit(const struct request *request, struct sim_stream *stream)
{
    for (size_t i = 0; i < request->number; i++)
        SIM_TRY(check(request->pointers[i], request->sizes[i]));
    for (size_t i = 0; i < request->location_count; i++) {
        SIM_REQUIRE(request->firsts[i] < request->number &&
                    (i == 0 ? request->firsts[i] == 0 : request->firsts[i] > request->firsts[i - 1]));
        SIM_TRY(check_location(request->locations[i]));
    }
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sim_op *op =
        sim_op_new(SIM_OP_COPY, sizeof(struct batch) + request->number * sizeof(struct prefetch), run_batch);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct batch *batch = (struct batch *)op->payload;
    batch->number = request->number;
    for (size_t i = 0, k = 0; i < request->number; i++) {
        while (k + 1 < request->location_count && request->firsts[k + 1] <= i)
            k++;
        batch->items[i] = (struct prefetch){.pointer = request->pointers[i],
                                            .size = request->sizes[i],
                                            .discard = request->discard,
                                            .move = request->locations != NULL};
        if (request->locations != NULL)
            batch->items[i].place = place_of(request->locations[k]);
    }
    return sim_stream_submit(stream, op, NULL);
}

static CUresult prefetch(CUdeviceptr pointer, size_t size, CUmemLocation location, CUstream handle,
                         enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    const size_t first = 0;
    const struct request request = {&pointer, &size, 1, &location, &first, 1, false};
    return submit(&request, stream);
}

static CUresult submit_batch(const struct request *request, unsigned long long flags, CUstream handle,
                             enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(request->pointers != NULL && request->sizes != NULL && request->number > 0 && flags == 0);
    SIM_REQUIRE(stream != stream->context->legacy);
    SIM_REQUIRE(request->locations == NULL ||
                (request->firsts != NULL && request->location_count > 0 && request->location_count <= request->number));
    return submit(request, stream);
}

SIM_PAIR(cuMemPrefetchAsync, _ptsz, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream),
         prefetch(pointer, size, location_of(device), stream, meant))
SIM_PAIR(cuMemPrefetchAsync_v2, _ptsz,
         (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream stream),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, size, location, stream, meant))
SIM_PAIR(cuMemPrefetchBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t number, CUmemLocation *locations, size_t *firsts,
          size_t location_count, unsigned long long flags, CUstream stream),
         locations == NULL
             ? CUDA_ERROR_INVALID_VALUE
             : submit_batch(&(struct request){pointers, sizes, number, locations, firsts, location_count, false}, flags,
                            stream, meant))
SIM_PAIR(cuMemDiscardBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t number, unsigned long long flags, CUstream stream),
         submit_batch(&(struct request){pointers, sizes, number, NULL, NULL, 0, true}, flags, stream, meant))
SIM_PAIR(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t number, CUmemLocation *locations, size_t *firsts,
          size_t location_count, unsigned long long flags, CUstream stream),
         locations == NULL
             ? CUDA_ERROR_INVALID_VALUE
             : submit_batch(&(struct request){pointers, sizes, number, locations, firsts, location_count, true}, flags,
                            stream, meant))

static void apply(struct sim_chunk *chunk, CUmem_advise advice, struct place place)
{
    uint32_t bit = UINT32_C(1) << (is_host(place) ? HOST_BIT : place.id);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
        chunk->read_mostly = true;
        break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        chunk->read_mostly = false;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        chunk->preferred = place;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        chunk->preferred = (struct place){CU_MEM_LOCATION_TYPE_INVALID, 0};
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        chunk->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        chunk->accessed_by &= ~bit;
        break;
    }
}

static CUresult advise(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    bool accessed = advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (accessed || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        SIM_TRY(check_location(location));
    else
        location = location_of(CU_DEVICE_CPU);
    SIM_REQUIRE(!accessed || location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                location.type == CU_MEM_LOCATION_TYPE_HOST);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = size > 0 ? find(pointer, size) : NULL;
    if (range != NULL && have_chunks(range)) {
        struct span span = span_of(range, pointer, size);
        for (size_t i = span.first; i < span.end; i++)
            apply(&range->chunks[i], advice, place_of(location));
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUdevice device)
{
    SIM_INJECT(cuMemAdvise);
    return advise(pointer, size, advice, location_of(device));
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location)
{
    SIM_INJECT(cuMemAdvise_v2);
    return advise(pointer, size, advice, location);
}

/* The location that all chunks have in common. */
static struct place common(const struct sim_range *range, struct span span, bool preferred)
{
    struct place place = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    for (size_t i = span.first; i < span.end; i++) {
        struct place one = preferred ? range->chunks[i].preferred : range->chunks[i].prefetched;
        if (i > span.first && (one.type != place.type || one.id != place.id))
            return (struct place){CU_MEM_LOCATION_TYPE_INVALID, 0};
        place = one;
    }
    return place;
}

static int device_of(struct place place)
{
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id
           : place.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU
                                                     : CU_DEVICE_INVALID;
}

static CUresult answer(int *data, size_t count, CUmem_range_attribute which, const struct sim_range *range,
                       struct span span)
{
    bool read_mostly = true;
    uint32_t accessed_by = UINT32_MAX;
    switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        for (size_t i = span.first; i < span.end; i++)
            read_mostly = read_mostly && range->chunks[i].read_mostly;
        *data = read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        for (size_t i = span.first; i < span.end; i++)
            accessed_by &= range->chunks[i].accessed_by;
        for (int device = 0; device <= HOST_BIT && count > 0; device++)
            if (accessed_by >> device & 1) {
                *data++ = device == HOST_BIT ? CU_DEVICE_CPU : device;
                count--;
            }
        while (count-- > 0)
            *data++ = CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *data = device_of(common(range, span, which == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION));
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *data = common(range, span, which == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE).type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *data = common(range, span, which == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID).id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult range_attribute(void *data, size_t data_size, CUmem_range_attribute which, CUdeviceptr pointer,
                                size_t size)
{
    SIM_REQUIRE(data != NULL && data_size >= sizeof(int) && data_size % sizeof(int) == 0 && size > 0);
    SIM_REQUIRE(data_size == sizeof(int) || which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = find(pointer, size);
    if (range != NULL && have_chunks(range))
        result = answer(data, data_size / sizeof(int), which, range, span_of(range, pointer, size));
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
