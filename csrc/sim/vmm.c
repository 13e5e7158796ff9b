/* SPDX-License-Identifier: BSD-3-Clause */
#include "vmm.h"

#include "inject.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MADV_COLLAPSE; <sys/mman.h> defines it only since glibc 2.37. */
#define ADVICE_COLLAPSE 25
#define ALLOCATION_MAGIC UINT64_C(0x53494d5048595331)

struct allocation {
    uint64_t magic;
    struct allocation *next; /* in the pool of recycled allocations */
    unsigned references;     /* handles and mappings; under the table's lock */
    unsigned handles;
    int fd;
    uint64_t size;
    bool host;
    unsigned device; /* unless the memory is on the host */
    bool charged;    /* this process pays for it */
    uint64_t file;   /* after an export or import: identifies it among processes; otherwise 0 */
    unsigned long long id;
    CUmemAllocationProp properties;
};

struct sim_mapping {
    struct sim_mapping *next;
    uint64_t base, size;
    struct allocation *allocation;
    unsigned char access[SIM_MAX_DEVICES + 1]; /* CUmemAccess_flags; the last one is for the host */
};

static unsigned long long next_id = 1;
/* Objects are recycled and never freed, so that a released handle is recognised as stale. */
static struct allocation *pool;   /* under the table's lock */
static struct allocation *shared; /* allocations with `file`; under the table's lock */

struct sim_mapping_view sim_mapping_view(const struct sim_range *range, uint64_t address)
{
    if (range != NULL)
        for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
            if (address >= mapping->base && address - mapping->base < mapping->size)
                return (struct sim_mapping_view){.base = mapping->base,
                                                 .size = mapping->size,
                                                 .host = mapping->allocation->host,
                                                 .device = mapping->allocation->device,
                                                 .handle_types = mapping->allocation->properties.requestedHandleTypes,
                                                 .id = mapping->allocation->id};
    return (struct sim_mapping_view){.size = 0};
}

bool sim_address_is_device(uint64_t address)
{
    const struct sim_range *range = sim_range_find(address);
    return sim_range_is_device(range) &&
           (range->kind != SIM_RANGE_RESERVATION || !sim_mapping_view(range, address).host);
}

bool sim_mapping_is_accessible(const struct sim_range *range, uint64_t address, unsigned device)
{
    for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
        if (address >= mapping->base && address - mapping->base < mapping->size)
            return mapping->access[device] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return false;
}

bool sim_mapping_is_hidden(const struct sim_range *range, uint64_t address)
{
    for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
        if (address >= mapping->base && address - mapping->base < mapping->size) {
            bool hidden = true;
            for (unsigned place = 0; place < sizeof mapping->access; place++)
                hidden = hidden && mapping->access[place] == CU_MEM_ACCESS_FLAGS_PROT_NONE;
            return hidden;
        }
    return false;
}

int sim_mapping_file(const struct sim_range *range, uint64_t address, uint64_t size)
{
    for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
        if (address >= mapping->base && address - mapping->base < mapping->size)
            return size <= mapping->base + mapping->size - address ? mapping->allocation->fd : -1;
    return -1;
}

static bool aligned(uint64_t value)
{
    return value % SIM_GRANULARITY == 0;
}

static bool on_host(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_location(CUmemLocation location)
{
    if (on_host(location)) { /* machines with a single NUMA node */
        SIM_REQUIRE(location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA || location.id == 0);
        return CUDA_SUCCESS;
    }
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return location.id >= 0 && (unsigned)location.id < sim_segment_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* The index of a location's access. */
static unsigned place_of(CUmemLocation location)
{
    return on_host(location) ? SIM_MAX_DEVICES : (unsigned)location.id;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    SIM_REQUIRE(properties != NULL && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    SIM_TRY(check_location(properties->location));
    const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if ((properties->requestedHandleTypes & ~known) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
    SIM_INJECT(cuMemGetAllocationGranularity);
    SIM_ENTER();
    SIM_REQUIRE(granularity != NULL && option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SIM_TRY(check_properties(properties));
    *granularity = SIM_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    SIM_INJECT(cuMemAddressReserve);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && size > 0 && aligned(size) && flags == 0 && (alignment & (alignment - 1)) == 0);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range =
        sim_range_reserve(SIM_RANGE_RESERVATION, wish, size, alignment < SIM_GRANULARITY ? SIM_GRANULARITY : alignment);
    if (range != NULL)
        *out = range->base;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t size)
{
    SIM_INJECT(cuMemAddressFree);
    SIM_ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(base);
    if (range != NULL && range->kind == SIM_RANGE_RESERVATION && range->base == base && range->size == size &&
        range->mappings == NULL) {
        sim_range_remove(range);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

static struct allocation *allocation_new(int fd, uint64_t size, const CUmemAllocationProp *properties, bool charged)
{
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct allocation *allocation = pool;
    if (allocation != NULL)
        pool = allocation->next;
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (allocation == NULL)
        allocation = malloc(sizeof *allocation);
    if (allocation == NULL)
        return NULL;
    *allocation = (struct allocation){.magic = ALLOCATION_MAGIC,
                                      .references = 1,
                                      .handles = 1,
                                      .fd = fd,
                                      .size = size,
                                      .host = on_host(properties->location),
                                      .device = on_host(properties->location) ? 0 : (unsigned)properties->location.id,
                                      .charged = charged,
                                      .id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED),
                                      .properties = *properties};
    return allocation;
}

/*
 * One large page instead of 512 small ones takes a tenth of the time, here and when the memory is mapped later. If the
 * kernel has no large page, or does not support this (before Linux 6.1), small pages are created one by one.
 */
static void ask_for_large_pages(char *address, uint64_t size)
{
    /* A page of the file must exist. */
    for (uint64_t at = 0; at < size; at += SIM_GRANULARITY)
        *(volatile char *)(address + at) = 0;
    madvise(address, size, ADVICE_COLLAPSE);
}

static int poisoned_memory(uint64_t size)
{
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return -1;
    /* Aligned for large pages. */
    void *space = MAP_FAILED;
    if (ftruncate(fd, (off_t)size) == 0)
        space = mmap(NULL, size + SIM_GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        close(fd);
        return -1;
    }
    char *address = (char *)space + (SIM_GRANULARITY - (uintptr_t)space % SIM_GRANULARITY) % SIM_GRANULARITY;
    bool mapped = mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    if (mapped) {
        ask_for_large_pages(address, size);
        sim_memory_poison(address, size);
    }
    munmap(space, size + SIM_GRANULARITY);
    if (mapped)
        return fd;
    close(fd);
    return -1;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    SIM_INJECT(cuMemCreate);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && size > 0 && aligned(size) && flags == 0);
    SIM_TRY(check_properties(properties));
    /* Fabric handles need a service that grants access, and there is none here. */
    if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0)
        return CUDA_ERROR_NOT_PERMITTED;
    unsigned device = (unsigned)properties->location.id;
    bool charged = !on_host(properties->location);
    if (charged && !sim_segment_charge(device, SIM_CHARGE_MEMORY, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = poisoned_memory(size);
    struct allocation *allocation = fd < 0 ? NULL : allocation_new(fd, size, properties, charged);
    if (allocation == NULL) {
        if (fd >= 0)
            close(fd);
        if (charged)
            sim_segment_refund(device, SIM_CHARGE_MEMORY, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!charged)
        sim_memory_page_lock(size);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
    return CUDA_SUCCESS;
}

/* Called with the table's lock held. */
static void unreference(struct allocation *allocation)
{
    if (--allocation->references != 0)
        return;
    if (allocation->charged)
        sim_segment_refund(allocation->device, SIM_CHARGE_MEMORY, allocation->size);
    if (allocation->file != 0) {
        struct allocation **place = &shared, *same = NULL;
        while (*place != allocation)
            place = &(*place)->next;
        *place = allocation->next;
        /* Two threads that import it at once have it twice. */
        for (struct allocation *other = shared; other != NULL; other = other->next)
            same = other->file == allocation->file ? other : same;
        if (same == NULL)
            sim_segment_leave(allocation->file);
    }
    close(allocation->fd);
    allocation->magic = 0;
    allocation->next = pool;
    pool = allocation;
}

static struct allocation *find(CUmemGenericAllocationHandle handle)
{
    struct allocation *allocation = (struct allocation *)(uintptr_t)handle;
    return allocation != NULL && allocation->magic == ALLOCATION_MAGIC && allocation->handles > 0 ? allocation : NULL;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_INJECT(cuMemRelease);
    SIM_ENTER();
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct allocation *allocation = find(handle);
    if (allocation != NULL) {
        allocation->handles--;
        unreference(allocation);
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return allocation != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map(uint64_t base, uint64_t size, struct allocation *allocation)
{
    struct sim_range *range = sim_range_find(base);
    SIM_REQUIRE(allocation != NULL && size <= allocation->size);
    SIM_REQUIRE(range != NULL && range->kind == SIM_RANGE_RESERVATION && size <= range->base + range->size - base);
    SIM_REQUIRE(!range->forgotten);
    struct sim_mapping **place = &range->mappings;
    while (*place != NULL && (*place)->base + (*place)->size <= base)
        place = &(*place)->next;
    SIM_REQUIRE(*place == NULL || (*place)->base >= base + size);
    struct sim_mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* According to the header, a mapping starts without access. */
    if (mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) == MAP_FAILED) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *mapping = (struct sim_mapping){.next = *place, .base = base, .size = size, .allocation = allocation};
    *place = mapping;
    allocation->references++;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_INJECT(cuMemMap);
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size) && offset == 0 && flags == 0);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    CUresult result = map(base, size, find(handle));
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

/* The mappings that together cover [base, base + size) without a gap, or NULL. */
static struct sim_mapping **covering(uint64_t base, uint64_t size)
{
    struct sim_range *range = sim_range_find(base);
    if (range == NULL || range->kind != SIM_RANGE_RESERVATION)
        return NULL;
    struct sim_mapping **first = &range->mappings;
    while (*first != NULL && (*first)->base + (*first)->size <= base)
        first = &(*first)->next;
    uint64_t reached = base;
    if (*first == NULL || (*first)->base > base)
        return NULL;
    for (struct sim_mapping *mapping = *first; mapping != NULL && reached < base + size; mapping = mapping->next) {
        if (mapping != *first && mapping->base != reached)
            return NULL;
        reached = mapping->base + mapping->size;
    }
    return reached >= base + size ? first : NULL;
}

bool sim_mapping_covers(uint64_t base, uint64_t size)
{
    return covering(base, size) != NULL;
}

/* The last of the mappings that exactly make up the range; otherwise NULL. */
static struct sim_mapping *last_of(struct sim_mapping *first, uint64_t base, uint64_t size)
{
    struct sim_mapping *last = first;
    while (last->base + last->size < base + size)
        last = last->next;
    return first->base == base && last->base + last->size == base + size ? last : NULL;
}

/* A real driver permits unmapping it. */
static bool is_reserved_and_empty(uint64_t base, uint64_t size)
{
    const struct sim_range *range = sim_range_find(base);
    if (range == NULL || range->kind != SIM_RANGE_RESERVATION || size > range->base + range->size - base)
        return false;
    for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
        if (mapping->base < base + size && base < mapping->base + mapping->size)
            return false;
    return true;
}

CUresult cuMemUnmap(CUdeviceptr base, size_t size)
{
    SIM_INJECT(cuMemUnmap);
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size));
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(base, size);
    struct sim_mapping *last = place == NULL ? NULL : last_of(*place, base, size);
    if (sim_config.strict && place == NULL && is_reserved_and_empty(base, size))
        result = CUDA_SUCCESS;
    if (last != NULL) {
        sim_memory_unback(base, size);
        struct sim_mapping *end = last->next;
        while (*place != end) {
            struct sim_mapping *mapping = *place;
            *place = mapping->next;
            unreference(mapping->allocation);
            free(mapping);
        }
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

static bool set_access(struct sim_mapping *mapping, const CUmemAccessDesc *descriptions, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mapping->access[place_of(descriptions[i].location)] = (unsigned char)descriptions[i].flags;
    /* One page table serves all simulated devices, so the widest access of any of them applies. */
    unsigned char access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (unsigned place = 0; place <= SIM_MAX_DEVICES; place++)
        if (mapping->access[place] > access)
            access = mapping->access[place];
    int protection = access == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
                     : access == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                               : PROT_READ | PROT_WRITE;
    return mprotect((void *)(uintptr_t)mapping->base, mapping->size, protection) == 0;
}

bool sim_mappings_reach(const struct sim_range *range, bool reach)
{
    bool done = true;
    for (struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next) {
        if (mapping->allocation->host)
            continue;
        done = (reach ? set_access(mapping, NULL, 0)
                      : mprotect((void *)(uintptr_t)mapping->base, mapping->size, PROT_NONE) == 0) &&
               done;
    }
    return done;
}

bool sim_allocations_are_shared(void)
{
    return shared != NULL;
}

CUresult cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc *descriptions, size_t count)
{
    SIM_INJECT(cuMemSetAccess);
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size) && descriptions != NULL && count > 0);
    bool for_host = false;
    for (size_t i = 0; i < count; i++) {
        SIM_REQUIRE(descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                    descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                    descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        SIM_TRY(check_location(descriptions[i].location));
        for_host = for_host || on_host(descriptions[i].location);
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(base, size);
    struct sim_mapping *end = place == NULL ? NULL : last_of(*place, base, size);
    if (end != NULL) {
        result = CUDA_SUCCESS;
        /* The host can only access its own memory. */
        for (struct sim_mapping *mapping = *place; for_host && mapping != end->next; mapping = mapping->next)
            if (!mapping->allocation->host)
                result = CUDA_ERROR_NOT_SUPPORTED;
        for (struct sim_mapping *mapping = *place; result == CUDA_SUCCESS && mapping != end->next;
             mapping = mapping->next)
            if (!set_access(mapping, descriptions, count))
                result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    SIM_ENTER();
    SIM_REQUIRE(flags != NULL && location != NULL);
    SIM_TRY(check_location(*location));
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(pointer, 1);
    bool found = place != NULL;
    if (found)
        *flags = (unsigned long long)(*place)->access[place_of(*location)];
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    SIM_INJECT(cuMemRetainAllocationHandle);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_mapping **place = covering((uint64_t)(uintptr_t)address, 1);
    bool found = place != NULL;
    if (found) {
        (*place)->allocation->references++;
        (*place)->allocation->handles++;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)(*place)->allocation;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    SIM_ENTER();
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct allocation *allocation = find(handle);
    if (allocation != NULL && properties != NULL)
        *properties = allocation->properties;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return allocation != NULL && properties != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint64_t file_of(int fd)
{
    struct stat status;
    return syscall(SYS_fstat, fd, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* From now on, every process that has the memory shares it. Called with the table's lock held for writing. */
static void share(struct allocation *allocation)
{
    uint64_t file = file_of(allocation->fd);
    unsigned device = allocation->host ? SIM_MAX_DEVICES : allocation->device;
    if (file == 0 || !sim_segment_share(device, file, allocation->size))
        return;
    allocation->file = file;
    allocation->charged = false;
    allocation->next = shared;
    shared = allocation;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    SIM_INJECT(cuMemExportToShareableHandle);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && flags == 0);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct allocation *allocation = find(handle);
    if (allocation != NULL && allocation->properties.requestedHandleTypes == type) {
        int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
        result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (fd >= 0 && allocation->file == 0)
            share(allocation);
        if (fd >= 0)
            *(int *)out = fd;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

/* Takes ownership of the descriptor, unless it fails. */
static CUresult import(int fd, unsigned device, struct allocation **out)
{
    uint64_t file = file_of(fd);
    off_t size = lseek(fd, 0, SEEK_END);
    if (file == 0 || size <= 0 || !aligned((uint64_t)size))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct allocation *own = shared;
    while (own != NULL && own->file != file)
        own = own->next;
    if (own != NULL) {
        own->references++;
        own->handles++;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (own != NULL) {
        close(fd);
        *out = own;
        return CUDA_SUCCESS;
    }
    if (!sim_segment_join(&device, file, (uint64_t)size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device}};
    if (device == SIM_MAX_DEVICES)
        properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    *out = allocation_new(fd, (uint64_t)size, &properties, false);
    if (*out == NULL) {
        sim_segment_leave(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_wrlock(&sim_ranges_lock);
    (*out)->file = file;
    (*out)->next = shared;
    shared = *out;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shareable,
                                        CUmemAllocationHandleType type)
{
    SIM_INJECT(cuMemImportFromShareableHandle);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = NULL;
    CUresult result = import(fd, context->device, &allocation);
    if (result != CUDA_SUCCESS) {
        close(fd);
        return result;
    }
    *out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
    return CUDA_SUCCESS;
}
