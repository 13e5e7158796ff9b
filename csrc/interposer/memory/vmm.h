/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Virtualises the application's own virtual memory management. The application gets handles of the interposer. Its
 * mappings and accesses are recorded, so that the memory behind a handle can be evicted and restored at all its
 * addresses.
 *
 * Each handle has a block (blocks.h). Its mappings change only while the block is held (not moving), so that the mover
 * can read them without a lock. Lock order: vmm.lock, then those of memory.h.
 */
#ifndef GPUSHARE_MEMORY_VMM_H
#define GPUSHARE_MEMORY_VMM_H

#include "base/ordered_map.h"
#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

struct gs_backend;
struct gs_backend;
struct gs_block;
struct gs_memory_view;

/* One call of cuMemMap. */
struct gs_vmm_mapping {
    struct gs_node node; /* by address */
    size_t size;
    struct gs_vmm_handle *handle; /* NULL: memory of the driver (imported, or on the host) */
    struct gs_vmm_mapping *next;  /* next mapping of this handle */
    unsigned access_count;
    CUmemAccessDesc access[GPUSHARE_MAX_GPUS + 2];
};

/* One call of cuMemCreate. */
struct gs_vmm_handle {
    struct gs_node node; /* by the value that the application holds */
    size_t size;
    CUmemAllocationProp properties;
    unsigned long long flags, id;
    unsigned references; /* references of the application; mappings also keep the handle alive */
    unsigned users;      /* calls that make it unevictable and that keep it alive while they hold no lock */
    struct gs_vmm_mapping *mappings;
    struct gs_block *block; /* NULL: a handle of the driver, counted as unevictable */
};

/* Maps the memory behind a handle at its addresses (backends/vmm.c). The caller holds the block. */
struct gs_vmm_backend {
    const struct gs_backend *of_blocks;
    size_t granularity;

    /* Maps the resident part of the block at a new mapping, or unmaps it. A failure leaves nothing behind. */
    CUresult (*apply_mapping)(struct gs_block *block, const struct gs_vmm_mapping *mapping);
    void (*withdraw_mapping)(struct gs_block *block, const struct gs_vmm_mapping *mapping);
    CUresult (*apply_access)(struct gs_block *block, const struct gs_vmm_mapping *mapping,
                             const CUmemAccessDesc *access, size_t count);
};

/* Called before the process is attached. */
void gs_vmm_set_backend(const struct gs_vmm_backend *backend);

CUresult gs_vmm_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags);

/*
 * All of these return CUDA_ERROR_NOT_FOUND for what the interposer does not manage. The caller then calls the driver.
 */
CUresult gs_vmm_release(CUmemGenericAllocationHandle handle);
CUresult gs_vmm_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
CUresult gs_vmm_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
CUresult gs_vmm_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags);
CUresult gs_vmm_unmap(CUdeviceptr address, size_t size);
CUresult gs_vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
CUresult gs_vmm_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address);

/* Makes the memory unevictable and returns the driver's handle. */
CUresult gs_vmm_make_unevictable(CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle *real);

/* Makes all memory that is mapped in a range unevictable. */
CUresult gs_vmm_make_range_unevictable(CUdeviceptr address, size_t size);

/* Whether managed memory of the interposer is mapped in that range. */
bool gs_vmm_any(CUdeviceptr address, size_t size);

/* Finds the mapping of an address; false if there is none. */
bool gs_vmm_find(CUdeviceptr address, struct gs_memory_view *view, unsigned long long *handle_types);

/*
 * Handles outlive contexts, but their memory is copied in one. Another context of the device takes over. If there is
 * none, the memory stays where it is until there is one again.
 */
void gs_vmm_context_ends(CUcontext context);
void gs_vmm_context_begins(CUcontext context, CUdevice device);

void gs_vmm_after_fork(void);

#endif
