/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Legacy IPC of memory (for events, see event.c), and descriptors for address ranges. Memory gets a file when its first
 * handle is requested, so that memory which is never shared costs nothing.
 */
#include "ipc.h"

#include "context.h"
#include "contexts.h"
#include "inject.h"
#include "ranges.h"
#include "segment/devices.h"
#include "vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHARED_MAGIC UINT64_C(0x53494d5348415200)

_Static_assert(sizeof(struct sim_shared) <= CU_IPC_HANDLE_SIZE, "a handle must hold it");

struct sim_shared sim_shared_describe(enum sim_shared_kind kind, int fd, uint64_t id, uint64_t size, unsigned device)
{
    struct stat status = {.st_ino = 0};
    syscall(SYS_fstat, fd, &status);
    return (struct sim_shared){.magic = SHARED_MAGIC + kind,
                               .id = id,
                               .inode = status.st_ino,
                               .size = size,
                               .pid = getpid(),
                               .fd = fd,
                               .device = sim_segment_machine(device)};
}

int sim_shared_open(enum sim_shared_kind kind, const struct sim_shared *shared)
{
    char path[64];
    struct stat status;
    unsigned device;
    if (shared->magic != SHARED_MAGIC + kind ||
        (kind != SIM_SHARED_EVENT && !sim_segment_seen(shared->device, &device)))
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared->pid, shared->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    /* The descriptor's number may belong to another file by now. */
    if (fd >= 0 && (syscall(SYS_fstat, fd, &status) != 0 || status.st_ino != shared->inode)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

CUresult sim_shared_map(struct sim_context *context, const struct sim_shared *shared, int fd, struct sim_pool *pool,
                        uint64_t *base)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    unsigned device = 0;
    sim_segment_seen(shared->device, &device); /* it was found when it was opened */
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_reserve(SIM_RANGE_IPC, 0, shared->size, SIM_GRANULARITY);
    if (range != NULL && sim_memory_back_with(range, fd)) {
        range->context = context;
        range->device = device;
        range->pool = pool;
        range->fd = fd;
        range->opened = 1;
        *base = range->base;
        result = CUDA_SUCCESS;
    } else {
        if (range != NULL)
            sim_range_remove(range);
        close(fd);
        result = CUDA_ERROR_MAP_FAILED;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    SIM_INJECT(cuIpcGetMemHandle);
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(handle != NULL);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    if (range != NULL && range->kind == SIM_RANGE_DEVICE && !range->leaving) {
        result = sim_memory_share(range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        const struct sim_shared shared =
            sim_shared_describe(SIM_SHARED_MEMORY, range->fd, range->id, range->size, range->device);
        memset(handle, 0, sizeof *handle);
        memcpy(handle->reserved, &shared, sizeof shared);
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

struct opened {
    const struct sim_context *context;
    uint64_t inode;
    struct sim_range *found;
};

static void find_opened(struct sim_range *range, void *argument)
{
    struct opened *opened = argument;
    struct stat status;
    if (range->kind == SIM_RANGE_IPC && range->pool == NULL && range->context == opened->context &&
        syscall(SYS_fstat, range->fd, &status) == 0 && status.st_ino == opened->inode)
        opened->found = range;
}

/* This flag is the only one that exists, and is required. It also makes the memory of another device accessible. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    SIM_INJECT(cuIpcOpenMemHandle_v2);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    struct sim_shared shared;
    memcpy(&shared, handle.reserved, sizeof shared);
    if (shared.magic == SHARED_MAGIC + SIM_SHARED_MEMORY && shared.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    int fd = sim_shared_open(SIM_SHARED_MEMORY, &shared);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    struct opened opened = {context, shared.inode, NULL};
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_ranges_each(find_opened, &opened);
    if (opened.found != NULL) {
        opened.found->opened++;
        *out = opened.found->base;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (opened.found != NULL) {
        close(fd);
        return CUDA_SUCCESS;
    }
    uint64_t base;
    SIM_TRY(sim_shared_map(context, &shared, fd, NULL, &base));
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    SIM_INJECT(cuIpcCloseMemHandle);
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(sim_context_drain(context));
    bool last = false;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool found = range != NULL && range->base == pointer && range->kind == SIM_RANGE_IPC && range->pool == NULL;
    if (found)
        last = --range->opened == 0;
    pthread_rwlock_unlock(&sim_ranges_lock);
    SIM_REQUIRE(found);
    return last ? sim_memory_free(pointer) : CUDA_SUCCESS;
}

/* In place of a dma-buf: a descriptor of the file that backs the memory, from its first byte on. */
CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr pointer, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags)
{
    SIM_INJECT(cuMemGetHandleForAddressRange);
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(out != NULL && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && size > 0 && pointer % 4096 == 0 &&
                size % 4096 == 0 && (flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) == 0);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    int fd = -1;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    if (range != NULL && size <= range->base + range->mapped - pointer) {
        if (range->kind == SIM_RANGE_DEVICE)
            fd = sim_memory_share(range) ? range->fd : -1;
        else if (range->kind == SIM_RANGE_RESERVATION)
            fd = sim_mapping_file(range, pointer, size);
        if (fd >= 0)
            fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        result = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (result == CUDA_SUCCESS)
        *(int *)out = fd;
    return result;
}
