/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/admission.h"

#include "base/lock.h"
#include "base/session.h"
#include "gate/enter.h"
#include "gate/work.h"
#include "memory/devices.h"

#define MIB (UINT64_C(1) << 20)

CUresult gs_memory_reserve_unevictable(CUdevice ordinal, size_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    return device != NULL ? gs_device_book(device, 0, bytes, 0) : CUDA_ERROR_INVALID_DEVICE;
}

void gs_memory_count_unevictable(CUdevice ordinal, int64_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device == NULL || bytes == 0)
        return;
    gs_mutex_lock(&gs_memory_lock);
    if (bytes < 0)
        gs_device_subtract_locked(&device->usage.unevictable, -(uint64_t)bytes);
    else
        device->usage.unevictable += (uint64_t)bytes;
    device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

void gs_memory_release_unevictable(CUdevice ordinal, size_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device != NULL)
        gs_device_unbook(device, 0, bytes, 0);
}

/*
 * An estimate of what a context takes on its own. The scheduler replaces it with the measured value. An idle PyTorch
 * process on a data-centre GPU takes about 512 MiB. On a small (simulated) GPU the estimate is smaller.
 */
static uint64_t context_bytes(const struct gs_device *device)
{
    return device->total / 64 < 512 * MIB ? device->total / 64 : 512 * MIB;
}

CUresult gs_memory_admit_context(CUdevice ordinal)
{
    if (!gs_session_attached())
        return CUDA_SUCCESS;
    struct gs_device *device = gs_device_of(ordinal);
    if (device == NULL)
        return CUDA_SUCCESS; /* the driver will report what is wrong */
    return gs_device_book(device, 0, 0, context_bytes(device));
}

void gs_memory_context_begun(CUdevice ordinal)
{
    struct gs_device *device = gs_session_attached() ? gs_device_of(ordinal) : NULL;
    if (device == NULL)
        return;
    gs_mutex_lock(&gs_memory_lock);
    device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

void gs_memory_context_gone(CUdevice ordinal)
{
    struct gs_device *device = gs_session_attached() ? gs_device_of(ordinal) : NULL;
    if (device != NULL)
        gs_device_unbook(device, 0, 0, context_bytes(device));
}

/* The driver does not report how much it loads. The code of a large library takes some hundred MiB. */
static uint64_t load_bytes(const struct gs_device *device)
{
    return 2 * context_bytes(device);
}

bool gs_memory_begin_load(struct gs_load *load)
{
    if (!gs_session_attached() || gs_device_current(&load->device, NULL) != CUDA_SUCCESS ||
        gs_device_book(load->device, 0, 0, load_bytes(load->device)) != CUDA_SUCCESS)
        return false;
    if (gs_gate_enter(&load->entered, NULL, GS_STREAM_NONE, GS_WORK_NONE) == CUDA_SUCCESS)
        return true;
    gs_device_unbook(load->device, 0, 0, load_bytes(load->device));
    return false;
}

void gs_memory_end_load(const struct gs_load *load)
{
    gs_gate_leave(load->entered);
    gs_device_unbook(load->device, 0, 0, load_bytes(load->device));
}
