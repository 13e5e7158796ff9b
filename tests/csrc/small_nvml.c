/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libnvidia-ml.so.1 with one device and many processes. Like the real one it is not linked -Bsymbolic and calls its
 * own functions by name; it notices when one of those calls ends in a shim instead.
 */
#include <nvml.h>
#include <string.h>
#include <unistd.h>

#define GIB (1ULL << 30)
enum { OTHERS = 100 };

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Small Success" : "Small Error";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    (void)device;
    static const char text[] = "GPU-00112233-4455-6677-8899-AAbbccddeeff";
    if (length < sizeof(text))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(uuid, text, sizeof(text));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    (void)device;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = 80 * GIB;
    memory->reserved = 1 * GIB;
    memory->used = 60 * GIB;
    memory->free = 19 * GIB;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t exact = {.version = nvmlMemory_v2};
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &exact);
    memory->total = exact.total;
    memory->used = exact.used + exact.reserved;
    memory->free = exact.free;
    return exact.used == 60 * GIB ? result : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)device;
    unsigned int room = *count;
    *count = OTHERS + 1;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < OTHERS; i++)
        infos[i] = (nvmlProcessInfo_t){.pid = 4000000 + i, .usedGpuMemory = 5, .gpuInstanceId = 1};
    infos[OTHERS] = (nvmlProcessInfo_t){.pid = (unsigned int)getpid(), .usedGpuMemory = 6, .gpuInstanceId = 7};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_t list[OTHERS + 1];
    unsigned int all = OTHERS + 1;
    unsigned int room = *count;
    nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(device, &all, list);
    *count = all;
    if (result != NVML_SUCCESS || room < all)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < all; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = list[i].pid, .usedGpuMemory = list[i].usedGpuMemory};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos)
{
    (void)device;
    if (*count > 0)
        infos[0] = (nvmlProcessInfo_t){.pid = 4000000, .usedGpuMemory = 5};
    nvmlReturn_t result = *count > 0 ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
    *count = 1;
    return result;
}
