/* SPDX-License-Identifier: BSD-3-Clause */
#include "hooks/lifecycle.h"

#include "base/session.h"
#include "client/client.h"
#include "client/lease.h"
#include "gate/capture.h"
#include "gate/contexts.h"
#include "gate/meter.h"
#include "gate/pace.h"
#include "gate/slots.h"
#include "hibernate/hibernate.h"
#include "hooks/array.h"
#include "hooks/graph_memory.h"
#include "hooks/ipc.h"
#include "hooks/peer.h"
#include "hooks/pool.h"
#include "loader/pci.h"
#include "memory/admission.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/hasher.h"
#include "memory/host_ahead.h"
#include "memory/lane.h"
#include "memory/memory.h"
#include "memory/peers.h"
#include "memory/reservations.h"
#include "memory/vmm.h"

/* The client has its own handler for the child. */
static void in_forked_child(void)
{
    gs_pci_after_fork();
    gs_gate_after_fork();
    gs_capture_after_fork();
    gs_contexts_after_fork();
    gs_meter_after_fork();
    gs_pace_after_fork();
    gs_devices_after_fork();
    gs_blocks_after_fork();
    gs_lanes_after_fork();
    gs_hasher_after_fork();
    gs_vmm_after_fork();
    gs_reservations_after_fork();
    gs_peers_after_fork();
    gs_host_after_fork();
    gs_memory_after_fork();
    gs_hibernate_after_fork();
    gs_array_after_fork();
    gs_pool_after_fork();
    gs_ipc_after_fork();
    gs_graph_memory_after_fork();
}

void gs_lifecycle_start(void)
{
    static const struct gs_client_watch watch = {.lease_ends = gs_graph_memory_trim, .forked = in_forked_child};
    gs_client_start(&watch);
}

CUresult gs_lifecycle_admit_context(CUdevice device)
{
    gs_session_report_fork();
    CUresult result = gs_client_await_scheduler();
    return result == CUDA_SUCCESS ? gs_memory_admit_context(device) : result;
}

static void context_begins(CUcontext handle, CUdevice device)
{
    gs_vmm_context_begins(handle, device);
    gs_memory_context_begins(handle, device);
}

bool gs_lifecycle_context_begins(CUcontext handle, CUdevice device, bool primary, bool admitted)
{
    bool takes;
    if (gs_context_add(handle, device, primary, admitted, &takes) && gs_session_attached())
        context_begins(handle, device);
    return takes;
}

static void captures_end(CUcontext handle)
{
    if (gs_capture_over(NULL, handle))
        gs_lease_capture_ended();
}

static void forget_pooled(CUdeviceptr pointer)
{
    gs_pool_taken(gs_pool_take(pointer), true);
}

/*
 * Frees what belongs to a context while it can still be synchronised. Before that, moves what outlives it: once the
 * mover has left the context, nothing may bring it back.
 */
static void memory_ends(CUcontext handle)
{
    gs_vmm_context_ends(handle);
    if (!gs_session_attached())
        return;
    GS_LEAVES_CAPTURES_ALONE;
    gs_memory_context_ends(handle, forget_pooled);
    gs_array_context_ends(handle);
    gs_ipc_context_ends(handle);
    gs_peer_context_ends(handle);
    gs_lane_context_ends(handle);
    gs_hasher_context_ends(handle);
    gs_host_context_ends(handle);
}

void gs_lifecycle_context_ends(CUcontext handle)
{
    memory_ends(handle);
    captures_end(handle);
    gs_meter_context_ends(handle);
}

void gs_lifecycle_context_gone(CUcontext handle)
{
    CUdevice device;
    if (gs_context_remove(handle, &device))
        gs_memory_context_gone(device);
}

void gs_lifecycle_context_is_reset(CUcontext handle)
{
    memory_ends(handle);
    gs_primary_is_reset(handle);
    captures_end(handle);
    gs_meter_context_ends(handle);
}

void gs_lifecycle_context_was_reset(CUcontext handle, CUdevice device)
{
    gs_primary_was_reset(handle);
    context_begins(handle, device);
}

void gs_lifecycle_green_ends(CUcontext handle)
{
    gs_vmm_context_ends(handle);
    gs_memory_streams_end(handle);
    captures_end(handle);
    gs_meter_context_ends(handle);
    gs_lifecycle_context_gone(handle);
}
