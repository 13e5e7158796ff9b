/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory.h"

#include "capture.h"
#include "clock.h"
#include "fault.h"
#include "graph_memory.h"
#include "inject.h"
#include "managed.h"
#include "peer.h"
#include "pool.h"
#include "segment/memory.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MADV_POPULATE_WRITE; <sys/mman.h> has known it since glibc 2.35 only. */
#define ADVICE_POPULATE_WRITE 23
#define PAGE UINT64_C(4096)
#define ARENA_SIZE (UINT64_C(1) << 40)
#define ARENA_LEAST (UINT64_C(1) << 34)
#define POISON 0xCD

pthread_rwlock_t sim_ranges_lock = PTHREAD_RWLOCK_INITIALIZER;

static struct sim_range **ranges; /* ordered by base */
static size_t range_count, range_size;
static uint64_t arena, arena_end, cursor, freed;
static unsigned long long next_id = 1;

static uint64_t round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

bool sim_memory_init(void)
{
    /* Where the address space is limited (ulimit -v), take what there is. */
    for (uint64_t size = ARENA_SIZE; size >= ARENA_LEAST; size /= 2) {
        void *address =
            mmap(NULL, size + SIM_GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address == MAP_FAILED)
            continue;
        arena = round_up((uint64_t)(uintptr_t)address, SIM_GRANULARITY);
        arena_end = arena + size;
        cursor = arena;
        return true;
    }
    return false;
}

/* The index of the first range that ends after the address. */
static size_t search(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->base + ranges[middle]->mapped <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sim_range *sim_range_find(uint64_t address)
{
    size_t index = search(address);
    if (index == range_count || ranges[index]->base > address)
        return NULL;
    return ranges[index];
}

bool sim_range_is_device(const struct sim_range *range)
{
    return range != NULL && range->kind != SIM_RANGE_HOST && range->kind != SIM_RANGE_REGISTERED;
}

bool sim_address_is_device(uint64_t address)
{
    const struct sim_range *range = sim_range_find(address);
    return sim_range_is_device(range) &&
           (range->kind != SIM_RANGE_RESERVATION || !sim_mapping_view(range, address).host);
}

void sim_ranges_each(void (*visit)(struct sim_range *range, void *argument), void *argument)
{
    for (size_t i = 0; i < range_count; i++)
        visit(ranges[i], argument);
}

static struct sim_range *insert(enum sim_range_kind kind, uint64_t base, uint64_t size, uint64_t mapped)
{
    if (range_count == range_size) {
        size_t larger = range_size == 0 ? 256 : range_size * 2;
        struct sim_range **moved = realloc(ranges, larger * sizeof *moved);
        if (moved == NULL)
            return NULL;
        ranges = moved;
        range_size = larger;
    }
    struct sim_range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return NULL;
    range->kind = kind;
    range->base = base;
    range->size = size;
    range->mapped = mapped;
    range->id = next_id++;
    range->preferred = CU_DEVICE_INVALID;
    range->fd = -1;
    size_t index = search(base);
    memmove(ranges + index + 1, ranges + index, (range_count - index) * sizeof *ranges);
    ranges[index] = range;
    range_count++;
    return range;
}

/* A gap of the arena at or after `from`, with a page left free before the next range to catch overruns; 0: none. */
static uint64_t find_gap(uint64_t from, uint64_t size, uint64_t alignment)
{
    uint64_t candidate = round_up(from, alignment);
    for (size_t index = search(candidate); index < range_count; index++) {
        if (ranges[index]->base >= candidate + size + PAGE)
            break;
        if (ranges[index]->base + ranges[index]->mapped > candidate)
            candidate = round_up(ranges[index]->base + ranges[index]->mapped + PAGE, alignment);
    }
    return candidate + size + PAGE <= arena_end && candidate >= arena ? candidate : 0;
}

struct sim_range *sim_range_reserve(enum sim_range_kind kind, uint64_t wish, uint64_t size, uint64_t alignment)
{
    uint64_t mapped = round_up(size, PAGE);
    if (mapped < size || mapped > arena_end - arena)
        return NULL;
    uint64_t base = 0;
    /* A wish may leave no page to its neighbours. */
    if (wish >= arena && wish < arena_end && wish % alignment == 0 && mapped <= arena_end - wish &&
        sim_range_overlapping(wish, mapped) == NULL)
        base = wish;
    /* What was freed last may be the first to be used again ... */
    if (base == 0 && sim_config.reuse && freed != 0 && find_gap(freed, mapped, alignment) == freed)
        base = freed;
    if (base == 0 && sim_config.reuse)
        base = find_gap(arena, mapped, alignment);
    /* ... or addresses are used again as late as possible: a stale pointer is to fault. */
    if (base == 0)
        base = find_gap(cursor, mapped, alignment);
    if (base == 0)
        base = find_gap(arena, mapped, alignment);
    if (base == 0)
        return NULL;
    cursor = base + mapped + PAGE;
    return insert(kind, base, size, mapped);
}

struct sim_range *sim_range_overlapping(uint64_t base, uint64_t size)
{
    size_t index = search(base);
    return index < range_count && ranges[index]->base < base + size ? ranges[index] : NULL;
}

struct sim_range *sim_range_add_host(enum sim_range_kind kind, uint64_t base, uint64_t size)
{
    return insert(kind, base, size, size);
}

void sim_range_remove(struct sim_range *range)
{
    size_t index = search(range->base);
    if (range->base >= arena && range->base < arena_end)
        freed = range->base;
    memmove(ranges + index, ranges + index + 1, (range_count - index - 1) * sizeof *ranges);
    range_count--;
    free(range);
}

void sim_memory_poison(void *address, size_t size)
{
    memset(address, POISON, size);
}

bool sim_memory_back(uint64_t base, uint64_t size)
{
    void *address = (void *)(uintptr_t)base;
    if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED)
        return false;
    if (size >= SIM_GRANULARITY)
        madvise(address, size, MADV_HUGEPAGE);
    madvise(address, size, MADV_DONTFORK);
    /* All pages at once; before Linux 5.14, they come one by one. */
    madvise(address, size, ADVICE_POPULATE_WRITE);
    sim_memory_poison(address, size);
    return true;
}

void sim_memory_unback(uint64_t base, uint64_t size)
{
    mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static int share(const struct sim_range *range)
{
    void *address = (void *)(uintptr_t)range->base;
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return -1;
    /* Who writes meanwhile faults, and writes again once the file is there. */
    sim_fault_pause();
    bool done = mprotect(address, range->mapped, PROT_READ) == 0 && ftruncate(fd, (off_t)range->mapped) == 0;
    for (uint64_t at = 0; done && at < range->mapped;) {
        ssize_t part = pwrite(fd, (const char *)address + at, range->mapped - at, (off_t)at);
        done = part > 0;
        at += part > 0 ? (uint64_t)part : 0;
    }
    done = done && sim_memory_back_with(range, fd);
    if (!done)
        mprotect(address, range->mapped, PROT_READ | PROT_WRITE);
    sim_fault_resume();
    if (done)
        return fd;
    close(fd);
    return -1;
}

bool sim_memory_share(struct sim_range *range)
{
    if (range->fd < 0)
        range->fd = share(range);
    return range->fd >= 0;
}

bool sim_memory_back_with(const struct sim_range *range, int fd)
{
    void *address = (void *)(uintptr_t)range->base;
    if (mmap(address, range->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return false;
    madvise(address, range->mapped, MADV_DONTFORK);
    return true;
}

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

CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, size_t size, uint64_t *base)
{
    uint64_t bytes = round_up(size, PAGE);
    context = context->parent != NULL ? context->parent : context;
    bool charged = kind == SIM_RANGE_DEVICE || kind == SIM_RANGE_ARRAY;
    if (bytes < size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (charged && !sim_segment_charge(context->device, SIM_CHARGE_MEMORY, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_reserve(kind, 0, size, bytes >= SIM_GRANULARITY ? SIM_GRANULARITY : PAGE);
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

/* Under the lock. */
static void release(struct sim_range *range)
{
    if (range->kind == SIM_RANGE_MANAGED)
        sim_managed_forget(range);
    else if (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_ARRAY)
        sim_segment_refund(range->device, SIM_CHARGE_MEMORY, range->mapped);
    if (range->pool != NULL)
        sim_pool_take_back(range);
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

void sim_memory_release_context(struct sim_context *context)
{
    sim_graph_memory_forget(context);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    for (size_t i = range_count; i-- > 0;)
        if (ranges[i]->context == context && ranges[i]->pool != NULL)
            ranges[i]->context = NULL; /* memory of a pool is the device's */
        else if (ranges[i]->context == context)
            release(ranges[i]);
    pthread_rwlock_unlock(&sim_ranges_lock);
    sim_pool_trim_device(context->device);
}

static CUresult allocate(CUdeviceptr *out, size_t size)
{
    if (out != NULL)
        *out = 0;
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && size > 0);
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_DEVICE, size, &base));
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    SIM_INJECT(cuMemAlloc_v2);
    return allocate(pointer, size);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    SIM_INJECT(cuMemAllocPitch_v2);
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(pointer != NULL && pitch != NULL && width > 0 && height > 0);
    SIM_REQUIRE(element == 4 || element == 8 || element == 16);
    uint64_t row = round_up(width, 512);
    if (row < width || height > UINT64_MAX / row)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(allocate(pointer, row * height));
    *pitch = row;
    return CUDA_SUCCESS;
}

static bool is_freeable(const struct sim_range *range)
{
    return range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_GRAPH ||
           range->pool != NULL;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    SIM_INJECT(cuMemFree_v2);
    SIM_ENTER();
    if (pointer == 0 && sim_context_current == NULL)
        return CUDA_SUCCESS;
    SIM_ENTER_CONTEXT(context);
    if (pointer == 0)
        return CUDA_SUCCESS;
    (void)context;
    SIM_TRY(sim_capture_check_unsafe());
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool valid = range != NULL && range->base == pointer && is_freeable(range) && !range->leaving;
    struct sim_context *owner = valid ? range->context : NULL;
    bool graph = owner != NULL && range->kind == SIM_RANGE_GRAPH;
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (!valid)
        return CUDA_ERROR_INVALID_VALUE;
    if (owner == NULL)
        owner = context;
    sim_context_drain(owner);
    sim_peer_drain(owner);
    CUresult result = graph ? sim_graph_memory_free(pointer) : sim_memory_free(pointer);
    sim_pool_settle();
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    SIM_INJECT(cuMemGetInfo_v2);
    SIM_ENTER_CONTEXT(context);
    struct sim_usage usage;
    sim_segment_usage(context->device, &usage);
    if (total != NULL)
        *total = usage.total;
    if (free_bytes != NULL)
        *free_bytes = usage.used + usage.managed < usage.total ? usage.total - usage.used - usage.managed : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    SIM_INJECT(cuMemGetAddressRange_v2);
    SIM_ENTER_CONTEXT(context);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool found = range != NULL && !range->leaving && !sim_mapping_is_hidden(range, pointer);
    if (found && base != NULL)
        *base = range->base;
    if (found && size != NULL)
        *size = range->size;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Pinning takes the caller's time; several threads may pin at once. */
void sim_memory_pin(uint64_t bytes)
{
    __atomic_add_fetch(&sim_counters_now.pinned, bytes, __ATOMIC_RELAXED);
    if (sim_config.pin_bandwidth == 0)
        return;
    uint64_t duration = sim_duration(bytes, sim_config.pin_bandwidth);
    __atomic_add_fetch(&sim_counters_now.pin_ns, duration, __ATOMIC_RELAXED);
    sim_sleep_until(sim_now() + duration);
}

static CUresult allocate_host(void **out, size_t size, unsigned flags)
{
    if (out != NULL)
        *out = NULL;
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && (flags & ~7u) == 0);
    if (size == 0)
        return CUDA_SUCCESS;
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_HOST, size, &base));
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_range_find(base)->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    pthread_rwlock_unlock(&sim_ranges_lock);
    *out = (void *)(uintptr_t)base;
    sim_memory_pin(size);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    SIM_INJECT(cuMemHostAlloc);
    return allocate_host(out, size, flags);
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    SIM_INJECT(cuMemAllocHost_v2);
    return allocate_host(out, size, 0);
}

static CUresult check_host(void *pointer, enum sim_range_kind kind, CUresult otherwise)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool found = range != NULL && range->base == (uint64_t)(uintptr_t)pointer && range->kind == kind;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : otherwise;
}

CUresult cuMemFreeHost(void *pointer)
{
    SIM_INJECT(cuMemFreeHost);
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(check_host(pointer, SIM_RANGE_HOST, CUDA_ERROR_INVALID_VALUE));
    sim_context_drain(context);
    return sim_memory_free((uint64_t)(uintptr_t)pointer);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    SIM_INJECT(cuMemHostRegister_v2);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(pointer != NULL && size > 0 && (flags & ~15u) == 0);
    SIM_TRY(sim_capture_check_unsafe());
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_overlapping((uint64_t)(uintptr_t)pointer, size);
    if (range != NULL)
        result = sim_range_is_device(range) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if ((range = sim_range_add_host(SIM_RANGE_REGISTERED, (uint64_t)(uintptr_t)pointer, size)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        range->context = context;
        range->device = context->device;
        range->flags = flags;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (result == CUDA_SUCCESS)
        sim_memory_pin(size);
    return result;
}

CUresult cuMemHostRegister(void *pointer, size_t size, unsigned flags)
{
    return cuMemHostRegister_v2(pointer, size, flags);
}

CUresult cuMemHostUnregister(void *pointer)
{
    SIM_INJECT(cuMemHostUnregister);
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(check_host(pointer, SIM_RANGE_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    sim_context_drain(context);
    return sim_memory_free((uint64_t)(uintptr_t)pointer);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(out != NULL && flags == 0);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool host = range != NULL && !sim_range_is_device(range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    SIM_REQUIRE(host);
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(flags != NULL);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool host = range != NULL && range->kind == SIM_RANGE_HOST;
    if (host)
        *flags = range->flags;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Under the lock. `range` may be NULL: ordinary host memory. */
static CUresult attribute(void *data, CUpointer_attribute which, CUdeviceptr pointer, struct sim_range *range)
{
    bool device = sim_address_is_device(pointer);
    const struct sim_mapping_view view = sim_mapping_view(range, pointer);
    struct sim_context *current;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (range->kind == SIM_RANGE_RESERVATION || range->pool != NULL)
            *(CUcontext *)data = NULL;
        else
            *(CUcontext *)data = (CUcontext)range->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (sim_context_resolve(NULL, &current) != CUDA_SUCCESS)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (sim_mapping_is_hidden(range, pointer))
            return CUDA_ERROR_INVALID_VALUE;
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device && range->kind != SIM_RANGE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = range->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(int *)data = range->kind == SIM_RANGE_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = view.host ? CU_DEVICE_CPU : (int)(view.size != 0 ? view.device : range->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = range->kind == SIM_RANGE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = range->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)data = range->kind != SIM_RANGE_RESERVATION || view.size != 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = view.handle_types;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = (CUmemoryPool)range->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = range->kind == SIM_RANGE_RESERVATION ? view.size : range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = range->kind == SIM_RANGE_RESERVATION ? view.base : range->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = range->kind == SIM_RANGE_RESERVATION ? view.id : range->id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr pointer)
{
    SIM_INJECT(cuPointerGetAttribute);
    SIM_ENTER();
    SIM_REQUIRE(data != NULL && which >= CU_POINTER_ATTRIBUTE_CONTEXT);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    CUresult result =
        range == NULL || range->leaving ? CUDA_ERROR_INVALID_VALUE : attribute(data, which, pointer, range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

static size_t attribute_size(CUpointer_attribute which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return 4;
    default:
        return 8;
    }
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **data, CUdeviceptr pointer)
{
    SIM_INJECT(cuPointerGetAttributes);
    SIM_ENTER();
    SIM_REQUIRE(count > 0 && which != NULL && data != NULL);
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        memset(data[i], 0, attribute_size(which[i]));
        if (range != NULL && !range->leaving) {
            CUresult one = attribute(data[i], which[i], pointer, range);
            if (one == CUDA_ERROR_NOT_SUPPORTED)
                result = one;
        } else if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            *(int *)data[i] = CU_DEVICE_INVALID;
        }
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr pointer)
{
    SIM_ENTER();
    SIM_REQUIRE(value != NULL && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool device = range != NULL && !range->leaving && sim_range_is_device(range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
