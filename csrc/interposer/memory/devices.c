/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/devices.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/context_list.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/host.h"
#include "memory/promises.h"

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
/* The most bytes of one request. Addresses have 57 bits. */
#define MOST_BYTES (UINT64_C(1) << 50)

struct gs_mutex gs_memory_lock = GS_MUTEX(GS_RANK_MEMORY);
struct gs_device gs_devices[GPUSHARE_MAX_GPUS];

static struct {
    struct gs_mutex growth;
    uint64_t headroom;
    uint64_t last_refusal_ns; /* under gs_memory_lock */
} figures = {.growth = GS_MUTEX(GS_RANK_GROWTH)};

static size_t between(size_t least, size_t value, size_t most)
{
    return value < least ? least : value > most ? most : value;
}

struct gs_device *gs_device_of(CUdevice ordinal)
{
    struct gs_device *found = NULL;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && found == NULL; i++) {
        struct gs_device *device = &gs_devices[i];
        if (device->known && device->ordinal == ordinal)
            found = device;
        if (device->known)
            continue;
        CUuuid uuid;
        size_t total;
        if (GS_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS ||
            GS_REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS)
            break;
        device->known = true;
        device->ordinal = ordinal;
        memcpy(device->usage.gpu, uuid.bytes, sizeof(device->usage.gpu));
        device->total = total;
        device->limit = UINT64_MAX;
        /*
         * Handles of 128 MiB cost less than 5 % of a move (26 ms for 16 GiB, whose copy takes 290 ms). A small GPU gets
         * smaller ones, so that a partial eviction can choose between pieces.
         */
        device->piece_size = gs_round_up(between(GS_GRANULARITY, total / 64, 128 * MIB), GS_GRANULARITY);
        device->slab_size = gs_round_up(between(GS_GRANULARITY, total / 256, 32 * MIB), GS_GRANULARITY);
        device->last_block = &device->blocks;
        found = device;
    }
    gs_mutex_unlock(&gs_memory_lock);
    return found;
}

struct gs_device *gs_device_by_uuid(const uint8_t uuid[16])
{
    struct gs_device *device = NULL;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && device == NULL; i++)
        if (gs_devices[i].known && memcmp(gs_devices[i].usage.gpu, uuid, 16) == 0)
            device = &gs_devices[i];
    gs_mutex_unlock(&gs_memory_lock);
    return device;
}

CUmemAllocationHandleType gs_device_handle_type(CUdevice device)
{
    int can = 0;
    if (GS_REAL(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) !=
        CUDA_SUCCESS)
        can = 0;
    return can ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
}

void gs_devices_see(struct gpushare_seen *result)
{
    /* Only the helper calls this. After a wake on another GPU, that GPU takes the place of the earlier one. */
    static struct gpushare_seen seen;
    int count = 0;
    if (seen.count == 0 && GS_REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS)
        for (int i = 0; i < count && seen.count < GPUSHARE_MAX_GPUS; i++)
            if (GS_REAL(cuDeviceGetUuid_v2)((CUuuid *)seen.gpus[seen.count], i) == CUDA_SUCCESS)
                seen.count++;
    *result = seen;
}

void gs_device_moved(const uint8_t from[16], const uint8_t to[16])
{
    struct gs_device *device = gs_device_by_uuid(from), *other = gs_device_by_uuid(to);
    if (device == NULL)
        return;
    gs_mutex_lock(&gs_memory_lock);
    memcpy(device->usage.gpu, to, sizeof(device->usage.gpu));
    device->limit = UINT64_MAX;
    /* A device that was only queried has no memory of this process. Each device appears once. */
    if (other != NULL)
        memcpy(other->usage.gpu, from, sizeof(other->usage.gpu));
    gs_mutex_unlock(&gs_memory_lock);
}

bool gs_device_find_moved(uint8_t from[16], uint8_t to[16])
{
    bool moved = false;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && gs_devices[i].known && !moved; i++) {
        const struct gpushare_usage *usage = &gs_devices[i].usage;
        CUuuid uuid;
        moved = usage->promised + usage->unevictable + usage->context != 0 &&
                GS_REAL(cuDeviceGetUuid_v2)(&uuid, gs_devices[i].ordinal) == CUDA_SUCCESS &&
                memcmp(uuid.bytes, usage->gpu, sizeof(usage->gpu)) != 0;
        if (moved) {
            memcpy(from, usage->gpu, sizeof(usage->gpu));
            memcpy(to, uuid.bytes, sizeof(uuid.bytes));
        }
    }
    gs_mutex_unlock(&gs_memory_lock);
    return moved;
}

uint64_t gs_device_limit(const uint8_t uuid[16])
{
    struct gs_device *device = gs_device_by_uuid(uuid);
    gs_mutex_lock(&gs_memory_lock);
    uint64_t limit = device != NULL ? device->limit : UINT64_MAX;
    gs_mutex_unlock(&gs_memory_lock);
    return limit;
}

void gs_device_set_limit(const uint8_t uuid[16], uint64_t bytes)
{
    struct gs_device *device = gs_device_by_uuid(uuid);
    if (device == NULL)
        return;
    gs_mutex_lock(&gs_memory_lock);
    device->limit = bytes;
    gs_mutex_unlock(&gs_memory_lock);
}

/* The context that the thread used last, and its device. Valid as long as no context ends. */
static uint32_t contexts_ended;
static __thread struct {
    CUcontext context, owner;
    struct gs_device *device;
    uint32_t ended;
} last __attribute__((tls_model("initial-exec")));

void gs_device_forget_contexts(void)
{
    __atomic_add_fetch(&contexts_ended, 1, __ATOMIC_RELEASE);
}

CUresult gs_device_current(struct gs_device **device, CUcontext *context)
{
    uint32_t ended = __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
    CUcontext current = NULL;
    CUresult result = GS_REAL(cuCtxGetCurrent)(&current);
    if (result == CUDA_SUCCESS && current == NULL)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    if (last.context != current || last.ended != ended) {
        CUdevice ordinal;
        result = GS_REAL(cuCtxGetDevice)(&ordinal);
        if (result != CUDA_SUCCESS)
            return result;
        last.device = gs_device_of(ordinal);
        /* A context that the interposer has not recorded is not cached, because its end would not be noticed. */
        last.context = last.device != NULL && gs_context_alive(current) ? current : NULL;
        last.owner = gs_context_owner(current);
        last.ended = ended;
    }
    *device = last.device;
    if (context != NULL)
        *context = last.owner;
    return *device != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* On a small GPU, the headroom that the scheduler suggests could be the room of another process. */
static uint64_t headroom(const struct gs_device *device)
{
    uint64_t suggested = __atomic_load_n(&figures.headroom, __ATOMIC_RELAXED);
    return suggested < device->total / 128 ? suggested : device->total / 128;
}

struct gpushare_usage gs_device_usage_locked(const struct gs_device *device)
{
    struct gpushare_usage usage = device->usage;
    usage.host = gs_host_bytes();
    usage.shared = gs_host_shared();
    if (usage.shared > usage.host)
        usage.shared = usage.host; /* it was counted earlier */
    return usage;
}

bool gs_devices_are_empty(void)
{
    bool empty = true;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        empty = empty && gs_devices[i].usage.resident == 0;
    gs_mutex_unlock(&gs_memory_lock);
    return empty;
}

static bool figures_changed(void)
{
    bool changed = false;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        changed = changed || (gs_devices[i].known && gs_devices[i].usage_changed);
    gs_mutex_unlock(&gs_memory_lock);
    return changed;
}

/*
 * Reports the figures that changed. A growth in progress reports figures, too, and the scheduler must receive them in
 * order. So a thread that finds a growth in progress leaves the report to its thread. That thread checks for changes
 * again after it has released the lock, so that no change stays unreported.
 */
void gs_device_flush_reports(void)
{
    while (figures_changed() && gs_mutex_trylock(&figures.growth) == 0) {
        for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
            struct gs_device *device = &gs_devices[i];
            gs_mutex_lock(&gs_memory_lock);
            bool changed = device->known && device->usage_changed;
            device->usage_changed = false;
            uint64_t spare = device->footprint != 0 ? headroom(device) : 0;
            if (changed && device->usage.promised > device->footprint + 2 * spare)
                device->usage.promised = device->footprint + spare;
            struct gpushare_usage usage = gs_device_usage_locked(device);
            gs_mutex_unlock(&gs_memory_lock);
            if (changed)
                gs_promises()->report_usage(&usage);
        }
        gs_mutex_unlock(&figures.growth);
    }
}

/* Waits behind other threads that ask the scheduler. From now on, an interrupt cancels the caller's request, too. */
static uint64_t begin_growth(void)
{
    uint64_t cancels = gs_promises()->cancels();
    if (gs_mutex_trylock(&figures.growth) != 0) {
        gs_interrupt_watch();
        gs_mutex_lock(&figures.growth);
    }
    return cancels;
}

static void end_growth(void)
{
    gs_mutex_unlock(&figures.growth);
    gs_device_flush_reports();
}

void gs_devices_report(void)
{
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        gs_devices[i].usage_changed = gs_devices[i].known;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

/* A library that empties its cache and tries again is refused twice in a row. One line is enough for the user. */
static bool refused_before(void)
{
    uint64_t now = gs_now_ns();
    gs_mutex_lock(&gs_memory_lock);
    bool again = now - figures.last_refusal_ns < UINT64_C(1000000000);
    figures.last_refusal_ns = now;
    gs_mutex_unlock(&gs_memory_lock);
    return again;
}

void gs_device_print_too_large(const struct gs_device *device, uint64_t size)
{
    if (!refused_before())
        gs_print("cannot allocate %llu MiB at once: the GPU has %llu MiB. To hold more than the GPU has, set "
                 "GPUSHARE_OVERSUBSCRIBE=1 before the program starts",
                 (unsigned long long)(size >> 20), (unsigned long long)(device->total >> 20));
}

#ifdef GS_LOCK_RANKS
void gs_device_subtract_locked(uint64_t *figure, uint64_t bytes)
{
    if (bytes > *figure) {
        gs_print("a device's memory is below zero: %llu bytes are subtracted from %llu", (unsigned long long)bytes,
                 (unsigned long long)*figure);
        abort();
    }
    *figure -= bytes;
}
#endif

CUresult gs_device_book(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context)
{
    CUresult result = CUDA_SUCCESS;
    /* The request can never fit, and sums of such numbers could overflow. */
    if (evictable > MOST_BYTES || unevictable > MOST_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t cancels = begin_growth();
    gs_mutex_lock(&gs_memory_lock);
    uint64_t footprint = device->footprint + evictable;
    if (footprint > device->usage.promised || unevictable != 0 || context != 0) {
        struct gpushare_usage least = gs_device_usage_locked(device);
        if (footprint > least.promised)
            least.promised = footprint;
        least.unevictable += unevictable;
        least.context += context;
        uint64_t most = footprint > device->usage.promised ? least.promised + headroom(device) : least.promised;
        struct gpushare_grown answer;
        gs_mutex_unlock(&gs_memory_lock);
        result = gs_promises()->grow(&least, most, false, cancels, &answer);
        if (result == CUDA_SUCCESS && answer.status > GPUSHARE_GROWTH_SWAPPED) {
            answer.text[sizeof(answer.text) - 1] = '\0';
            if (!refused_before() && answer.text[0] != '\0')
                gs_print("%s", answer.text);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        /* Without a scheduler there is no refusal, but a lease for this would never come. */
        uint64_t cap = gs_session_cap();
        bool within = cap == 0 || least.promised + least.unevictable <= cap;
        bool fits = least.promised + least.unevictable + least.context <= device->total || gs_memory_oversubscribes();
        if (result == CUDA_SUCCESS && !(within && fits))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        gs_mutex_lock(&gs_memory_lock);
        if (result == CUDA_SUCCESS)
            device->usage.promised = answer.promised >= least.promised ? answer.promised : least.promised;
    }
    if (result == CUDA_SUCCESS) {
        device->footprint += evictable;
        device->usage.unevictable += unevictable;
        device->usage.context += context;
    }
    gs_mutex_unlock(&gs_memory_lock);
    end_growth();
    return result;
}

bool gs_device_promise_now(struct gs_device *device)
{
    struct gpushare_grown answer = {.status = GPUSHARE_GROWTH_RESIDENT};
    CUresult result = CUDA_SUCCESS;
    uint64_t cancels = begin_growth();
    gs_mutex_lock(&gs_memory_lock);
    struct gpushare_usage usage = gs_device_usage_locked(device);
    gs_mutex_unlock(&gs_memory_lock);
    if (usage.promised != 0)
        result = gs_promises()->grow(&usage, usage.promised, true, cancels, &answer);
    end_growth();
    return result == CUDA_SUCCESS && answer.status == GPUSHARE_GROWTH_RESIDENT;
}

bool gs_devices_promise_now(void)
{
    bool there = true;
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && there; i++) {
        gs_mutex_lock(&gs_memory_lock);
        bool known = gs_devices[i].known;
        gs_mutex_unlock(&gs_memory_lock);
        there = !known || gs_device_promise_now(&gs_devices[i]);
    }
    return there;
}

void gs_device_unbook(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context)
{
    gs_mutex_lock(&gs_memory_lock);
    gs_device_subtract_locked(&device->footprint, evictable);
    gs_device_subtract_locked(&device->usage.unevictable, unevictable);
    gs_device_subtract_locked(&device->usage.context, context);
    device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

bool gs_devices_own(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total)
{
    struct gs_device *device = gs_device_by_uuid(uuid);
    if (device == NULL)
        return false;
    gs_mutex_lock(&gs_memory_lock);
    *footprint = device->footprint + device->usage.unevictable + device->usage.context;
    *total = device->total;
    gs_mutex_unlock(&gs_memory_lock);
    return true;
}

unsigned gs_devices_usages(struct gpushare_usage usages[GPUSHARE_MAX_GPUS])
{
    unsigned count = 0;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        if (gs_devices[i].known)
            usages[count++] = gs_device_usage_locked(&gs_devices[i]);
    gs_mutex_unlock(&gs_memory_lock);
    return count;
}

void gs_devices_set_headroom(uint64_t bytes)
{
    __atomic_store_n(&figures.headroom, bytes, __ATOMIC_RELAXED);
}

void gs_devices_after_fork(void)
{
    gs_mutex_after_fork(&gs_memory_lock);
    gs_mutex_after_fork(&figures.growth);
}
