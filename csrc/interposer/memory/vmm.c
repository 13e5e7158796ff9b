/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/vmm.h"

#include "base/lock.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/enter.h"
#include "gate/slots.h"
#include "gate/work.h"
#include "loader/real.h"
#include "memory/admission.h"
#include "memory/backing.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/promises.h"
#include "memory/reservations.h"
#include "memory/view.h"

#include <stdlib.h>
#include <string.h>

/* Neither an address (it is not canonical) nor an index that a driver would reach. */
#define HANDLE_MARK (UINT64_C(0x6773) << 48)
#define HANDLE_MARK_BITS (UINT64_C(0xffff) << 48)

/* Programs ask for one or two kinds. */
enum { MOST_KINDS = 16 };

static struct {
    struct gs_mutex lock;
    struct gs_map handles, mappings;
    const struct gs_vmm_backend *backend;
    uint64_t serial;
    CUmemAllocationProp kinds[MOST_KINDS]; /* kinds that the driver has been seen to create */
    unsigned kind_count;
} vmm = {.lock = GS_MUTEX(GS_RANK_VMM)};

void gs_vmm_set_backend(const struct gs_vmm_backend *backend)
{
    vmm.backend = backend;
}

static struct gs_vmm_handle *find_handle(CUmemGenericAllocationHandle value)
{
    struct gs_node *node = gs_map_floor(&vmm.handles, value);
    return node != NULL && node->key == value ? (struct gs_vmm_handle *)node : NULL;
}

/*
 * The result for a handle that is not in the tables. The driver must not see a released handle of the interposer,
 * because it would take it for an address.
 */
static CUresult unknown(CUmemGenericAllocationHandle value)
{
    return (value & HANDLE_MARK_BITS) == HANDLE_MARK ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

/* The last mapping that begins before `end`, if it reaches beyond `start`. */
static struct gs_vmm_mapping *last_within(CUdeviceptr start, CUdeviceptr end)
{
    struct gs_vmm_mapping *mapping = (struct gs_vmm_mapping *)gs_map_floor(&vmm.mappings, end - 1);
    return mapping != NULL && mapping->node.key + mapping->size > start ? mapping : NULL;
}

/* Whether the range consists of whole mappings without a gap. *ours: at least one of them is memory that can move. */
static bool covered(CUdeviceptr start, size_t size, bool *ours)
{
    CUdeviceptr reached = start + size;
    *ours = false;
    bool whole = true;
    for (struct gs_vmm_mapping *mapping; reached > start && (mapping = last_within(start, reached)) != NULL;) {
        whole = whole && mapping->node.key + mapping->size == reached;
        *ours = *ours || (mapping->handle != NULL && mapping->handle->block != NULL);
        reached = mapping->node.key;
    }
    return whole && reached == start;
}

bool gs_vmm_any(CUdeviceptr start, size_t size)
{
    bool ours;
    gs_mutex_lock(&vmm.lock);
    covered(start, size, &ours);
    gs_mutex_unlock(&vmm.lock);
    return ours;
}

/* --- Handles --- */

/* For the last handle and the last mapping. */
static void drop_if_unused(struct gs_vmm_handle *handle)
{
    if (handle->references != 0 || handle->mappings != NULL || handle->users != 0)
        return;
    gs_map_remove(&vmm.handles, handle->node.key);
    if (handle->block != NULL) {
        gs_block_retire(gs_device_of(handle->block->ordinal), handle->block); /* frees the handle as well */
        return;
    }
    gs_memory_release_unevictable(handle->properties.location.id, handle->size);
    free(handle);
}

/* No other thread knows the block yet. */
static struct gs_block *itself(const void *block)
{
    return (struct gs_block *)block;
}

static CUresult create_block(struct gs_vmm_handle *handle, CUcontext context)
{
    struct gs_device *device = gs_device_of(handle->properties.location.id);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = gs_device_book(device, handle->size, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    /* A handle that may be shared is a single handle of the driver. */
    bool whole = handle->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    struct gs_block *block =
        gs_block_new(device, vmm.backend->of_blocks, context, handle->size, whole ? handle->size : device->piece_size);
    if (block == NULL) {
        gs_device_unbook(device, handle->size, 0, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->owner = handle;
    handle->block = block;
    struct gs_slot *entered;
    gs_mutex_lock(&gs_memory_lock);
    bool populate = gs_block_add_locked(device, block, &entered);
    gs_mutex_unlock(&gs_memory_lock);
    if (populate)
        gs_block_populate(device, block, entered);
    if (gs_gate_is_shut())
        gs_block_reach(device, itself, block);
    return CUDA_SUCCESS;
}

static CUresult create_unevictable(struct gs_vmm_handle *handle)
{
    CUdevice device = handle->properties.location.id;
    CUresult result = gs_memory_reserve_unevictable(device, handle->size);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemGenericAllocationHandle value;
    result = GS_REAL(cuMemCreate)(&value, handle->size, &handle->properties, handle->flags);
    if (result != CUDA_SUCCESS)
        gs_memory_release_unevictable(device, handle->size);
    else
        handle->node.key = value;
    return result;
}

/*
 * Whether the driver creates memory of this kind at all. It is asked once, by creating a little. An application that
 * tries one kind of handle after the other needs the error now, not when its memory is created later.
 */
static CUresult try_out(const CUmemAllocationProp *properties, size_t granularity)
{
    GS_LEAVES_CAPTURES_ALONE;
    gs_mutex_lock(&vmm.lock);
    bool known = false;
    for (unsigned i = 0; i < vmm.kind_count && !known; i++)
        known = memcmp(&vmm.kinds[i], properties, sizeof(*properties)) == 0;
    gs_mutex_unlock(&vmm.lock);
    if (known)
        return CUDA_SUCCESS;
    CUmemGenericAllocationHandle handle;
    CUresult result = GS_REAL(cuMemCreate)(&handle, granularity, properties, 0);
    if (result == CUDA_SUCCESS)
        GS_REAL(cuMemRelease)(handle);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return CUDA_SUCCESS; /* a lack of room does not depend on the kind */
    else
        return result;
    gs_mutex_lock(&vmm.lock);
    if (vmm.kind_count < MOST_KINDS)
        vmm.kinds[vmm.kind_count++] = *properties;
    gs_mutex_unlock(&vmm.lock);
    return CUDA_SUCCESS;
}

CUresult gs_vmm_create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags)
{
    if (out == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_FOUND;
    size_t granularity;
    CUresult result =
        GS_REAL(cuMemGetAllocationGranularity)(&granularity, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    if (size == 0 || size % granularity != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = try_out(properties, granularity);
    if (result != CUDA_SUCCESS)
        return result;
    struct gs_vmm_handle *handle = calloc(1, sizeof(*handle));
    if (handle == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    handle->size = size;
    handle->properties = *properties;
    handle->flags = flags;
    handle->references = 1;
    CUcontext context = gs_context_on(properties->location.id, NULL);
    /* The driver chooses the order in which the tiles of sparse arrays are mapped. */
    bool tiles = (properties->allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0;
    bool movable = context != NULL && !tiles && gs_memory_can_move();
    result = movable ? create_block(handle, context) : create_unevictable(handle);
    if (result != CUDA_SUCCESS) {
        free(handle);
        return result;
    }
    gs_mutex_lock(&vmm.lock);
    handle->id = ++vmm.serial;
    if (handle->block != NULL)
        handle->node.key = HANDLE_MARK | handle->id;
    gs_map_insert(&vmm.handles, &handle->node);
    gs_mutex_unlock(&vmm.lock);
    *out = handle->node.key;
    return CUDA_SUCCESS;
}

CUresult gs_vmm_release(CUmemGenericAllocationHandle value)
{
    CUresult result = CUDA_SUCCESS;
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_handle *handle = find_handle(value);
    if (handle == NULL)
        result = unknown(value);
    else if (handle->references == 0)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (handle->block == NULL)
        result = GS_REAL(cuMemRelease)(value);
    if (result == CUDA_SUCCESS) {
        handle->references--;
        drop_if_unused(handle);
    }
    gs_mutex_unlock(&vmm.lock);
    return result;
}

CUresult gs_vmm_retain(CUmemGenericAllocationHandle *value, CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_NOT_FOUND;
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_mapping *mapping = last_within(address, address + 1);
    if (mapping != NULL && mapping->handle != NULL) {
        result = CUDA_SUCCESS;
        if (mapping->handle->block == NULL)
            result = GS_REAL(cuMemRetainAllocationHandle)(value, (void *)address);
        else
            *value = mapping->handle->node.key;
        if (result == CUDA_SUCCESS)
            mapping->handle->references++;
    }
    gs_mutex_unlock(&vmm.lock);
    return result;
}

CUresult gs_vmm_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle value)
{
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_handle *handle = find_handle(value);
    bool ours = handle != NULL && handle->block != NULL;
    if (ours)
        *properties = handle->properties;
    gs_mutex_unlock(&vmm.lock);
    return ours ? CUDA_SUCCESS : unknown(value);
}

/* --- Mappings --- */

/*
 * Holds the block. False: it was being moved, and vmm.lock was released until that may have ended. Then everything that
 * the lock guards must be looked up again.
 */
static bool hold_locked(struct gs_block *block, struct gs_awaiting *awaiting)
{
    if (gs_block_try_hold(block, awaiting))
        return true;
    gs_mutex_unlock(&vmm.lock);
    gs_block_await(awaiting);
    gs_mutex_lock(&vmm.lock);
    return false;
}

/* CUDA_ERROR_NOT_READY: call it again (see hold_locked). */
static CUresult map_locked(struct gs_vmm_mapping *mapping, size_t offset, CUmemGenericAllocationHandle value,
                           unsigned long long flags, struct gs_awaiting *awaiting)
{
    struct gs_vmm_handle *handle = mapping->handle = find_handle(value);
    CUdeviceptr address = mapping->node.key;
    if (handle == NULL && unknown(value) != CUDA_ERROR_NOT_FOUND)
        return unknown(value);
    if (handle == NULL || handle->block == NULL)
        return gs_reservation_map(address, mapping->size, offset, value, flags);
    /* Checks what the driver would check, because the driver is not called while the memory is evicted. */
    size_t granularity = vmm.backend->granularity;
    if (handle->references == 0 || offset != 0 || flags != 0 || mapping->size == 0 || mapping->size > handle->size ||
        address % granularity != 0 || mapping->size % granularity != 0 ||
        !gs_reservation_includes(address, mapping->size) || last_within(address, address + mapping->size) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hold_locked(handle->block, awaiting))
        return CUDA_ERROR_NOT_READY;
    GS_LEAVES_CAPTURES_ALONE;
    CUresult result = vmm.backend->apply_mapping(handle->block, mapping);
    if (result == CUDA_SUCCESS) {
        mapping->next = handle->mappings;
        handle->mappings = mapping;
    }
    gs_block_release(handle->block);
    return result;
}

CUresult gs_vmm_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle value,
                    unsigned long long flags)
{
    struct gs_vmm_mapping *mapping = calloc(1, sizeof(*mapping));
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping->node.key = address;
    mapping->size = size;
    GS_AWAITING(awaiting);
    CUresult result;
    gs_mutex_lock(&vmm.lock);
    do
        result = map_locked(mapping, offset, value, flags, &awaiting);
    while (result == CUDA_ERROR_NOT_READY);
    if (result == CUDA_SUCCESS) {
        gs_map_insert(&vmm.mappings, &mapping->node);
        if (mapping->handle != NULL && mapping->handle->block == NULL) {
            mapping->next = mapping->handle->mappings;
            mapping->handle->mappings = mapping;
        }
    }
    gs_mutex_unlock(&vmm.lock);
    if (result != CUDA_SUCCESS)
        free(mapping);
    return result;
}

static void remove_mapping(struct gs_vmm_mapping *mapping)
{
    struct gs_vmm_handle *handle = mapping->handle;
    gs_map_remove(&vmm.mappings, mapping->node.key);
    if (handle != NULL) {
        struct gs_vmm_mapping **link = &handle->mappings;
        while (*link != mapping)
            link = &(*link)->next;
        *link = mapping->next;
    }
}

/* CUDA_ERROR_NOT_READY: call it again (see hold_locked). */
static CUresult unmap_one(struct gs_vmm_mapping *mapping, struct gs_awaiting *awaiting)
{
    struct gs_vmm_handle *handle = mapping->handle;
    if (handle == NULL || handle->block == NULL) {
        CUresult result = gs_reservation_unmap(mapping->node.key, mapping->size);
        if (result != CUDA_SUCCESS)
            return result;
        remove_mapping(mapping);
    } else {
        if (!hold_locked(handle->block, awaiting))
            return CUDA_ERROR_NOT_READY;
        GS_LEAVES_CAPTURES_ALONE;
        vmm.backend->withdraw_mapping(handle->block, mapping);
        remove_mapping(mapping);
        gs_block_release(handle->block);
    }
    free(mapping);
    if (handle != NULL)
        drop_if_unused(handle);
    return CUDA_SUCCESS;
}

CUresult gs_vmm_unmap(CUdeviceptr address, size_t size)
{
    bool ours;
    CUresult result = CUDA_SUCCESS;
    gs_mutex_lock(&vmm.lock);
    bool whole = covered(address, size, &ours);
    if (!whole)
        result = ours ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    GS_AWAITING(awaiting);
    for (CUdeviceptr end = address + size; result == CUDA_SUCCESS && end > address;) {
        struct gs_vmm_mapping *mapping = last_within(address, end);
        CUdeviceptr begin = mapping != NULL ? mapping->node.key : address;
        /* Another thread may have unmapped it during a wait. */
        result = mapping != NULL ? unmap_one(mapping, &awaiting) : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
            end = begin;
        else if (result == CUDA_ERROR_NOT_READY)
            result = CUDA_SUCCESS;
    }
    gs_mutex_unlock(&vmm.lock);
    return result;
}

/* --- Access --- */

static bool same_place(const CUmemLocation *one, const CUmemLocation *other)
{
    return one->type == other->type && one->id == other->id;
}

/* False if the list is full. */
static bool remember_access(struct gs_vmm_mapping *mapping, const CUmemAccessDesc *access)
{
    unsigned i = 0;
    while (i < mapping->access_count && !same_place(&mapping->access[i].location, &access->location))
        i++;
    if (i == sizeof(mapping->access) / sizeof(mapping->access[0]))
        return false;
    mapping->access[i] = *access;
    if (i == mapping->access_count)
        mapping->access_count++;
    return true;
}

static CUresult check_access(const struct gs_vmm_handle *handle, const CUmemAccessDesc *access)
{
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    int count = 0, can = 1, home = handle->properties.location.id, id = access->location.id;
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || id == home)
        return CUDA_SUCCESS;
    if (GS_REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && (id < 0 || id >= count))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = GS_REAL(cuDeviceCanAccessPeer)(&can, id, home);
    return result != CUDA_SUCCESS ? result : can ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* CUDA_ERROR_NOT_READY: call it again (see hold_locked). */
static CUresult set_access_of_one(struct gs_vmm_mapping *mapping, const CUmemAccessDesc *access, size_t count,
                                  struct gs_awaiting *awaiting)
{
    struct gs_vmm_handle *handle = mapping->handle;
    if (handle == NULL || handle->block == NULL)
        return GS_REAL(cuMemSetAccess)(mapping->node.key, mapping->size, access, count);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_access(handle, &access[i]);
    if (result != CUDA_SUCCESS)
        return result;
    if (!hold_locked(handle->block, awaiting))
        return CUDA_ERROR_NOT_READY;
    GS_LEAVES_CAPTURES_ALONE;
    result = vmm.backend->apply_access(handle->block, mapping, access, count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = remember_access(mapping, &access[i]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    gs_block_release(handle->block);
    return result;
}

CUresult gs_vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    if (access == NULL || count == 0)
        return CUDA_ERROR_NOT_FOUND;
    /* Only the driver can decide whether the host may access device memory, and only for memory that exists. */
    struct gs_slot *entered = NULL;
    bool asks = false;
    for (size_t i = 0; i < count; i++)
        asks = asks || access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (asks) {
        CUresult refused = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
        if (refused != CUDA_SUCCESS)
            return refused;
    }
    bool ours;
    gs_mutex_lock(&vmm.lock);
    bool whole = covered(address, size, &ours);
    CUresult result = !ours ? CUDA_ERROR_NOT_FOUND : whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    GS_AWAITING(awaiting);
    for (CUdeviceptr end = address + size; result == CUDA_SUCCESS && end > address;) {
        struct gs_vmm_mapping *mapping = last_within(address, end);
        CUdeviceptr begin = mapping != NULL ? mapping->node.key : address;
        result = mapping != NULL ? set_access_of_one(mapping, access, count, &awaiting) : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
            end = begin;
        else if (result == CUDA_ERROR_NOT_READY)
            result = CUDA_SUCCESS;
    }
    gs_mutex_unlock(&vmm.lock);
    if (asks)
        gs_gate_leave(entered);
    return result;
}

CUresult gs_vmm_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_mapping *mapping = last_within(address, address + 1);
    bool ours = mapping != NULL && mapping->handle != NULL && mapping->handle->block != NULL;
    if (ours) {
        *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        for (unsigned i = 0; i < mapping->access_count; i++)
            if (same_place(&mapping->access[i].location, location))
                *flags = mapping->access[i].flags;
    }
    gs_mutex_unlock(&vmm.lock);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- Memory that others will hold --- */

/*
 * Decrements the handle's `users`, which keep it alive without a lock. They are not part of `references`, which the
 * application may release at any time.
 */
static CUresult make_unevictable(struct gs_vmm_handle *handle, CUmemGenericAllocationHandle *real)
{
    struct gs_slot *entered;
    CUresult result = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
    if (result == CUDA_SUCCESS) {
        gs_mutex_lock(&gs_memory_lock);
        do
            result = gs_block_make_unevictable_locked(handle->block);
        while (result == CUDA_ERROR_NOT_READY);
        if (result == CUDA_SUCCESS && real != NULL)
            *real = handle->block->pieces[0].handle;
        gs_mutex_unlock(&gs_memory_lock);
        gs_gate_leave(entered);
        gs_device_flush_reports();
    }
    gs_mutex_lock(&vmm.lock);
    handle->users--;
    drop_if_unused(handle);
    gs_mutex_unlock(&vmm.lock);
    return result;
}

CUresult gs_vmm_make_unevictable(CUmemGenericAllocationHandle value, CUmemGenericAllocationHandle *real)
{
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_handle *handle = find_handle(value);
    bool ours = handle != NULL && handle->block != NULL;
    if (ours)
        handle->users++;
    gs_mutex_unlock(&vmm.lock);
    return ours ? make_unevictable(handle, real) : unknown(value);
}

CUresult gs_vmm_make_range_unevictable(CUdeviceptr address, size_t size)
{
    CUresult result = CUDA_ERROR_NOT_FOUND;
    for (CUdeviceptr end = address + size; end > address;) {
        gs_mutex_lock(&vmm.lock);
        struct gs_vmm_mapping *mapping = last_within(address, end);
        struct gs_vmm_handle *handle = mapping != NULL ? mapping->handle : NULL;
        if (handle != NULL && handle->block != NULL)
            handle->users++;
        else
            handle = NULL;
        end = mapping != NULL ? mapping->node.key : address;
        gs_mutex_unlock(&vmm.lock);
        if (handle != NULL && (result = make_unevictable(handle, NULL)) != CUDA_SUCCESS)
            return result;
    }
    return result;
}

bool gs_vmm_find(CUdeviceptr address, struct gs_memory_view *view, unsigned long long *handle_types)
{
    gs_mutex_lock(&vmm.lock);
    struct gs_vmm_mapping *mapping = last_within(address, address + 1);
    bool ours = mapping != NULL && mapping->handle != NULL && mapping->handle->block != NULL;
    if (ours) {
        *view = (struct gs_memory_view){.base = mapping->node.key,
                                        .size = mapping->size,
                                        .device = mapping->handle->properties.location.id,
                                        .id = HANDLE_MARK | mapping->handle->id,
                                        .hidden = true};
        for (unsigned i = 0; i < mapping->access_count; i++)
            view->hidden = view->hidden && mapping->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
        *handle_types = (unsigned long long)mapping->handle->properties.requestedHandleTypes;
    }
    gs_mutex_unlock(&vmm.lock);
    return ours;
}

static void move_to_context(struct gs_vmm_handle *handle, CUcontext context)
{
    gs_block_hold(handle->block);
    gs_mutex_lock(&gs_memory_lock);
    handle->block->context = context;
    gs_mutex_unlock(&gs_memory_lock);
    gs_block_release(handle->block);
}

/* Calls visit for every handle. It must not add or remove handles. */
static void each_handle(void (*visit)(struct gs_vmm_handle *, CUcontext, CUdevice), CUcontext context, CUdevice device)
{
    gs_mutex_lock(&vmm.lock);
    for (struct gs_node *node = gs_map_floor(&vmm.handles, UINT64_MAX); node != NULL;
         node = node->key != 0 ? gs_map_floor(&vmm.handles, node->key - 1) : NULL)
        if (((struct gs_vmm_handle *)node)->block != NULL)
            visit((struct gs_vmm_handle *)node, context, device);
    gs_mutex_unlock(&vmm.lock);
}

static void leave_context(struct gs_vmm_handle *handle, CUcontext context, CUdevice ignored)
{
    (void)ignored;
    if (handle->block->context == context)
        move_to_context(handle, gs_context_on(handle->block->ordinal, context));
}

static void enter_context(struct gs_vmm_handle *handle, CUcontext context, CUdevice device)
{
    if (handle->block->context != NULL || handle->block->ordinal != device)
        return;
    move_to_context(handle, context);
    /* No work was missing it so far. */
    for (unsigned i = 0; i < handle->block->piece_count; i++)
        if (handle->block->pieces[i].state != GS_PIECE_RESIDENT)
            gs_promises()->release_lease(GPUSHARE_CAUSE_GROWTH);
}

void gs_vmm_context_ends(CUcontext context)
{
    each_handle(leave_context, context, 0);
}

void gs_vmm_context_begins(CUcontext context, CUdevice device)
{
    each_handle(enter_context, context, device);
}

void gs_vmm_after_fork(void)
{
    gs_mutex_after_fork(&vmm.lock);
    vmm.handles.root = vmm.mappings.root = NULL;
}
