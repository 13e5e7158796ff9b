/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls that only ask, and calls that must fail. */
#include "player.h"

#include <string.h>

/* attributes BLOCK OFFSET */
static void op_attributes(struct self *self, const unsigned long long *n)
{
    static const struct {
        CUpointer_attribute attribute;
        const char *name;
        enum { NUMBER, ADDRESS, WORD, CONTEXT } kind;
    } attributes[] = {{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "type", NUMBER},
                      {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "device_pointer", ADDRESS},
                      {CU_POINTER_ATTRIBUTE_HOST_POINTER, "host_pointer", ADDRESS},
                      {CU_POINTER_ATTRIBUTE_IS_MANAGED, "managed", NUMBER},
                      {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "ordinal", NUMBER},
                      {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "range_start", ADDRESS},
                      {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "range_size", WORD},
                      {CU_POINTER_ATTRIBUTE_MAPPED, "mapped", NUMBER},
                      {CU_POINTER_ATTRIBUTE_CONTEXT, "context", CONTEXT},
                      {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "ipc", NUMBER},
                      {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "handle_types", WORD},
                      {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "access", NUMBER},
                      {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "pool", CONTEXT},
                      {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "mapping_size", WORD},
                      {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "mapping_base", ADDRESS}};
    const struct block *block = used_block(self, n[0]);
    if (block == NULL || block->size == 0)
        return;
    CUdeviceptr at = block->at + n[1] % block->size;
    for (unsigned i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        unsigned long long value = 0;
        self->calls++;
        CUresult result = driver_cuPointerGetAttribute(&value, attributes[i].attribute, at);
        note(self, " %s.result=%d", attributes[i].name, (int)result);
        if (result != CUDA_SUCCESS)
            continue;
        if (attributes[i].kind == NUMBER)
            note(self, " %s=%d", attributes[i].name, (int)value);
        else if (attributes[i].kind == WORD)
            note(self, " %s=%llu", attributes[i].name, value);
        else if (attributes[i].kind == ADDRESS && value == 0)
            note(self, " %s=none", attributes[i].name);
        else if (attributes[i].kind == ADDRESS)
            note(self, " %s=%lld", attributes[i].name, (long long)(value - block->at));
        else if (attributes[i].attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
            note(self, " %s=%d", attributes[i].name,
                 value == 0 ? -1 : (CUcontext)(uintptr_t)value == self->space->contexts[block->context]->handle);
        else
            note(self, " %s=%d", attributes[i].name, value != 0);
    }
}

/* range BLOCK OFFSET */
static void op_range(struct self *self, const unsigned long long *n)
{
    const struct block *block = used_block(self, n[0]);
    CUdeviceptr base = 0;
    size_t size = 0;
    if (block == NULL || block->size == 0)
        return;
    if (CALL(self, cuMemGetAddressRange, &base, &size, block->at + n[1] % block->size) == CUDA_SUCCESS)
        note(self, " base=%lld size=%zu", (long long)(base - block->at), size);
}

/* info */
static void op_info(struct self *self, const unsigned long long *n)
{
    (void)n;
    size_t free_bytes = 0, total = 0, limit = 0;
    unsigned flags = 0;
    int least = 0, greatest = 0, value = 0;
    if (CALL(self, cuMemGetInfo, &free_bytes, &total) == CUDA_SUCCESS)
        note(self, " free=%zu total=%zu sane=%d", free_bytes, total, free_bytes <= total);
    if (CALL(self, cuDeviceTotalMem, &total, 0) == CUDA_SUCCESS)
        note(self, " device_total=%zu", total);
    if (CALL(self, cuCtxGetLimit, &limit, CU_LIMIT_MALLOC_HEAP_SIZE) == CUDA_SUCCESS)
        note(self, " limit=%zu", limit);
    if (CALL(self, cuCtxGetFlags, &flags) == CUDA_SUCCESS)
        note(self, " flags=%u", flags);
    if (CALL(self, cuCtxGetStreamPriorityRange, &least, &greatest) == CUDA_SUCCESS)
        note(self, " least=%d greatest=%d", least, greatest);
    if (self->current >= 0 && CALL(self, cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                   self->space->contexts[self->current]->mix) == CUDA_SUCCESS)
        note(self, " threads=%d", value);
}

/* device ATTRIBUTE */
static void op_device(struct self *self, const unsigned long long *n)
{
    int value = 0, attribute = (int)(n[0] % (CU_DEVICE_ATTRIBUTE_MAX - 1)) + 1;
    if (CALL(self, cuDeviceGetAttribute, &value, (CUdevice_attribute)attribute, 0) == CUDA_SUCCESS)
        note(self, " attribute%d=%d", attribute, value);
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    size_t granularity = 0;
    if (CALL(self, cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
        CUDA_SUCCESS)
        note(self, " granularity=%zu", granularity);
}

/* wrong WHICH: a call that a program must not make */
static void op_wrong(struct self *self, const unsigned long long *n)
{
    CUdeviceptr at = 0;
    CUmemoryPool pool = NULL;
    CUgraph graph = NULL;
    size_t pitch;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 77}};
    CUdeviceptr nowhere = 0x1000;
    unsigned char byte = 0;
    /* Some of these are stream-ordered, and in the legacy stream. */
    if (capture_refuses_in(self, 0))
        return;
    switch (n[0] % 26) {
    case 0:
        CALL(self, cuMemAlloc, NULL, 4096);
        break;
    case 1:
        CALL(self, cuMemAlloc, &at, 0);
        break;
    case 2:
        CALL(self, cuMemAlloc, &at, (size_t)1 << 60);
        break;
    case 3:
        CALL(self, cuMemFree, 0);
        break;
    case 4:
        CALL(self, cuMemFree, nowhere);
        break;
    case 5:
        CALL(self, cuMemAllocAsync, &at, 0, CU_STREAM_LEGACY);
        break;
    case 6:
        CALL(self, cuMemAllocAsync, &at, (size_t)1 << 60, CU_STREAM_LEGACY);
        break;
    case 7:
        CALL(self, cuMemFreeAsync, nowhere, CU_STREAM_LEGACY);
        break;
    case 8:
        CALL(self, cuMemFreeAsync, 0, CU_STREAM_LEGACY);
        break;
    case 9:
        CALL(self, cuMemAllocPitch, &at, &pitch, 100, 100, 3);
        break;
    case 10:
        CALL(self, cuMemAllocFromPoolAsync, &at, 4096, NULL, CU_STREAM_LEGACY);
        break;
    case 11:
        CALL(self, cuMemCreate, &handle, 2 << 20, &properties, 0);
        break;
    case 12:
        properties.location.id = 0;
        CALL(self, cuMemCreate, &handle, 4095, &properties, 0);
        break;
    case 13:
        CALL(self, cuMemAddressReserve, &at, 4095, 0, 0, 0);
        break;
    case 14:
        CALL(self, cuMemAddressFree, nowhere, 2 << 20);
        break;
    case 15:
        CALL(self, cuMemUnmap, nowhere, 2 << 20);
        break;
    case 16:
        CALL(self, cuMemRelease, 0);
        break;
    case 17:
        CALL(self, cuEventQuery, NULL);
        break;
    case 18:
        CALL(self, cuMemHostAlloc, NULL, 4096, 0);
        break;
    case 19:
        CALL(self, cuMemFreeHost, &byte);
        break;
    case 20:
        CALL(self, cuPointerGetAttribute, &at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, nowhere);
        break;
    case 21:
        CALL(self, cuMemGetAddressRange, &at, &pitch, nowhere);
        break;
    case 22:
        CALL(self, cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)nowhere);
        break;
    case 23:
        CALL(self, cuDeviceGetMemPool, &pool, 77);
        break;
    case 24:
        CALL(self, cuStreamEndCapture, CU_STREAM_LEGACY, &graph);
        break;
    default:
        CALL(self, cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_LEGACY, NULL, NULL);
    }
}

const struct operation query_operations[] = {
    {"attributes", op_attributes, 0}, {"range", op_range, 0},     {"info", op_info, 0},
    {"device", op_device, 0},         {"wrong", op_wrong, WAITS}, {0}};
