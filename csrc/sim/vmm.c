/* SPDX-License-Identifier: BSD-3-Clause */
#include "vmm.h"

#include "segment.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOCATION_MAGIC UINT64_C(0x53494d5048595331)

struct allocation {
    uint64_t magic;
    struct allocation *next; /* in the pool of recycled ones */
    unsigned references;     /* handles and mappings; under the table's lock */
    unsigned handles;
    int fd;
    uint64_t size;
    unsigned device;
    bool charged; /* not if it was imported: its exporter pays */
    unsigned long long id;
    CUmemAllocationProp properties;
};

struct sim_mapping {
    struct sim_mapping *next;
    uint64_t base, size;
    struct allocation *allocation;
    CUmemAccess_flags access;
};

static unsigned long long next_id = 1;
/* Objects are recycled and never freed, so that a handle which was released is seen to be stale. */
static struct allocation *pool; /* under the table's lock */

struct sim_mapping_view sim_mapping_view(const struct sim_range *range, uint64_t address)
{
    if (range != NULL)
        for (const struct sim_mapping *mapping = range->mappings; mapping != NULL; mapping = mapping->next)
            if (address >= mapping->base && address - mapping->base < mapping->size)
                return (struct sim_mapping_view){mapping->base, mapping->size, mapping->allocation->device,
                                                 mapping->allocation->id};
    return (struct sim_mapping_view){0, 0, 0, 0};
}

static bool aligned(uint64_t value)
{
    return value % SIM_GRANULARITY == 0;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    SIM_REQUIRE(properties != NULL && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->location.id < 0 || (unsigned)properties->location.id >= sim_segment_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
    SIM_ENTER();
    SIM_REQUIRE(granularity != NULL && option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SIM_TRY(check_properties(properties));
    *granularity = SIM_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
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
                                      .device = (unsigned)properties->location.id,
                                      .charged = charged,
                                      .id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED),
                                      .properties = *properties};
    return allocation;
}

static int poisoned_memory(uint64_t size)
{
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return -1;
    void *address = MAP_FAILED;
    if (ftruncate(fd, (off_t)size) == 0)
        address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED) {
        close(fd);
        return -1;
    }
    sim_memory_poison(address, size);
    munmap(address, size);
    return fd;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && size > 0 && aligned(size) && flags == 0);
    SIM_TRY(check_properties(properties));
    unsigned device = (unsigned)properties->location.id;
    if (!sim_segment_charge(device, SIM_CHARGE_MEMORY, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = poisoned_memory(size);
    struct allocation *allocation = fd < 0 ? NULL : allocation_new(fd, size, properties, true);
    if (allocation == NULL) {
        if (fd >= 0)
            close(fd);
        sim_segment_refund(device, SIM_CHARGE_MEMORY, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
    return CUDA_SUCCESS;
}

/* Under the table's lock. */
static void unreference(struct allocation *allocation)
{
    if (--allocation->references != 0)
        return;
    if (allocation->charged)
        sim_segment_refund(allocation->device, SIM_CHARGE_MEMORY, allocation->size);
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
    struct sim_mapping **place = &range->mappings;
    while (*place != NULL && (*place)->base + (*place)->size <= base)
        place = &(*place)->next;
    SIM_REQUIRE(*place == NULL || (*place)->base >= base + size);
    struct sim_mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* A mapping starts without access, as the header says. */
    if (mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) == MAP_FAILED) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *mapping = (struct sim_mapping){*place, base, size, allocation, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    *place = mapping;
    allocation->references++;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size) && offset == 0 && flags == 0);
    pthread_rwlock_wrlock(&sim_ranges_lock);
    CUresult result = map(base, size, find(handle));
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

/* The mappings that make up [base, base + size) without a gap, or NULL. */
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

CUresult cuMemUnmap(CUdeviceptr base, size_t size)
{
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size));
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(base, size);
    struct sim_mapping *last = place == NULL ? NULL : *place;
    while (last != NULL && last->base + last->size < base + size)
        last = last->next;
    if (last != NULL && (*place)->base == base && last->base + last->size == base + size) { /* whole mappings only */
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

CUresult cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc *descriptions, size_t count)
{
    SIM_ENTER();
    SIM_REQUIRE(size > 0 && aligned(base) && aligned(size) && descriptions != NULL && count > 0);
    for (size_t i = 0; i < count; i++) {
        SIM_REQUIRE(descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                    descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                    descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (descriptions[i].location.id < 0 || (unsigned)descriptions[i].location.id >= sim_segment_devices())
            return CUDA_ERROR_INVALID_DEVICE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(base, size);
    if (place != NULL && (*place)->base == base) {
        result = CUDA_SUCCESS;
        /* One page table serves all simulated devices, so the widest access that is asked for counts. */
        CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        for (size_t i = 0; i < count; i++)
            if (descriptions[i].flags > access)
                access = descriptions[i].flags;
        int protection = access == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
                         : access == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                                   : PROT_READ | PROT_WRITE;
        if (mprotect((void *)(uintptr_t)base, size, protection) != 0)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        for (struct sim_mapping *mapping = *place; mapping != NULL && mapping->base < base + size;
             mapping = mapping->next)
            mapping->access = access;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    SIM_ENTER();
    SIM_REQUIRE(flags != NULL && location != NULL && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_mapping **place = covering(pointer, 1);
    bool found = place != NULL;
    if (found)
        *flags = (unsigned long long)(*place)->access;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
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

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && flags == 0);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct allocation *allocation = find(handle);
    if (allocation != NULL && allocation->properties.requestedHandleTypes == type) {
        int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
        result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (fd >= 0)
            *(int *)out = fd;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shareable,
                                        CUmemAllocationHandleType type)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = type,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)context->device}};
    struct allocation *allocation = NULL;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size > 0 && aligned((uint64_t)size))
        allocation = allocation_new(fd, (uint64_t)size, &properties, false);
    if (allocation == NULL) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
    return CUDA_SUCCESS;
}
