/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The application's own virtual memory management, virtualised: it holds handles of ours, and what it maps and to whom
 * it gives access is recorded, so that the memory behind a handle can leave the GPU and come back to every address.
 *
 * Each handle has a block (blocks.h). Its mappings change only while the block is held (not moving), so that the mover
 * may read them without a lock. Locks: vmm.lock, then those of memory.h.
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

/* One cuMemMap. */
struct gs_vmm_mapping {
    struct gs_node node; /* by address */
    size_t size;
    struct gs_vmm_handle *handle; /* NULL: of the driver's own memory (imported, on the host) */
    struct gs_vmm_mapping *next;  /* of the same handle */
    unsigned access_count;
    CUmemAccessDesc access[GPUSHARE_MAX_GPUS + 2];
};

/* One cuMemCreate. */
struct gs_vmm_handle {
    struct gs_node node; /* by the value that the application holds */
    size_t size;
    CUmemAllocationProp properties;
    unsigned long long flags, id;
    unsigned references; /* the application's; mappings keep it alive too */
    unsigned pins;       /* calls of pin, which keep it alive while they hold no lock */
    struct gs_vmm_mapping *mappings;
    struct gs_block *block; /* NULL: the driver's own handle, counted as unevictable */
};

/* What brings the memory behind a handle to its addresses (backends/vmm.c). The caller holds the block. */
struct gs_vmm_backend {
    const struct gs_backend *of_blocks;
    size_t granularity;

    /* Brings what is resident of the block to a new mapping, or takes it away. A failure leaves nothing behind. */
    CUresult (*apply_mapping)(struct gs_block *block, const struct gs_vmm_mapping *mapping);
    void (*withdraw_mapping)(struct gs_block *block, const struct gs_vmm_mapping *mapping);
    CUresult (*apply_access)(struct gs_block *block, const struct gs_vmm_mapping *mapping,
                             const CUmemAccessDesc *access, size_t count);
};

/* Before the process is attached. */
void gs_vmm_set_backend(const struct gs_vmm_backend *backend);

CUresult gs_vmm_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags);

/* CUDA_ERROR_NOT_FOUND, of all of these: not of ours, to be forwarded. */
CUresult gs_vmm_release(CUmemGenericAllocationHandle handle);
CUresult gs_vmm_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
CUresult gs_vmm_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
CUresult gs_vmm_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags);
CUresult gs_vmm_unmap(CUdeviceptr address, size_t size);
CUresult gs_vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
CUresult gs_vmm_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address);

/* Makes the memory stay on the GPU for good and returns the driver's handle. */
CUresult gs_vmm_pin(CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle *real);

/* The same for all that is mapped in a range. */
CUresult gs_vmm_pin_range(CUdeviceptr address, size_t size);

/* Whether memory of ours is mapped in that range. */
bool gs_vmm_any(CUdeviceptr address, size_t size);

/* The mapping that the address is in; false if there is none. */
bool gs_vmm_find(CUdeviceptr address, struct gs_memory_view *view, unsigned long long *handle_types);

/*
 * Handles outlive contexts, but their memory is copied in one: another of the device takes over, or, if there is none,
 * the memory stays where it is until there is one again.
 */
void gs_vmm_context_ends(CUcontext context);
void gs_vmm_context_begins(CUcontext context, CUdevice device);

void gs_vmm_after_fork(void);

#endif
