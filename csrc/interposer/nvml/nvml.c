/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Shows the process the memory of a GPU that it has to itself. The total is the real one. The used memory is the
 * footprint of its lease group plus what the driver keeps for itself. There are no other processes. torch's
 * out-of-memory message reads these figures, and so does `print(pynvml...)` in a notebook.
 *
 * The figures come from libgpushare. If the process never called cuInit, there are none, and NVML's own figures are
 * shown. So `!nvidia-smi` in a notebook, which inherits the preload, shows the GPU and all of its processes.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml/nvml_real.h"

/*
 * Exported by libgpushare.so: what this process's group holds on the GPU, and its limit. 0: the interposer is inactive.
 * Weak, because the shim may be loaded by itself.
 */
extern int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total) __attribute__((weak));

/* By this symbol, locate.c distinguishes this library from the real one. */
__attribute__((visibility("default"))) const char gpushare_nvml_shim[] = "libgpushare-nvml";

struct own {
    uint64_t footprint;
    uint64_t total;
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Reads "GPU-8-4-4-4-12" or "MIG-8-4-4-4-12". */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
    const char *at = strchr(text, '-');
    size_t digits = 0;
    for (; at != NULL && *at != '\0' && digits < 32; at++) {
        int digit = hex_digit(*at);
        if (digit < 0 && *at != '-')
            return false;
        if (digit >= 0) {
            uuid[digits / 2] = (uint8_t)((digits % 2 == 0 ? 0 : uuid[digits / 2] << 4) | digit);
            digits++;
        }
    }
    return digits == 32;
}

/* What the group holds on the device; false if NVML's own figures must be shown. */
static bool own_memory(nvmlDevice_t device, struct own *own)
{
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    uint8_t uuid[16];
    if (gpushare_own_memory == NULL || GS_NVML(nvmlDeviceGetUUID)(device, text, sizeof(text)) != NVML_SUCCESS)
        return false;
    return parse_uuid(text, uuid) && gpushare_own_memory(uuid, &own->footprint, &own->total) != 0;
}

/* Divides `total` into used and free bytes, when the driver keeps `reserved`. */
static void divide(const struct own *own, unsigned long long total, unsigned long long reserved,
                   unsigned long long *used, unsigned long long *free_bytes)
{
    unsigned long long usable = total > reserved ? total - reserved : 0;
    *used = own->footprint < usable ? own->footprint : usable;
    /* With a memory cap, the group has less free memory than the device. */
    unsigned long long room = own->total != 0 && own->total < usable ? own->total : usable;
    *free_bytes = room > *used ? room - *used : 0;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct own own;
    nvmlReturn_t result = GS_NVML(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result != NVML_SUCCESS || !own_memory(device, &own))
        return result;
    nvmlMemory_v2_t exact = {.version = nvmlMemory_v2};
    unsigned long long reserved = 0;
    if (GS_NVML(nvmlDeviceGetMemoryInfo_v2)(device, &exact) == NVML_SUCCESS)
        reserved = exact.reserved;
    divide(&own, memory->total, reserved, &memory->used, &memory->free);
    memory->used += reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct own own;
    nvmlReturn_t result = GS_NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS && own_memory(device, &own))
        divide(&own, memory->total, memory->reserved, &memory->used, &memory->free);
    return result;
}

/* In all versions of the lists, an element begins like this. The rest are instance ids. */
struct process {
    unsigned int pid;
    unsigned long long used;
};

_Static_assert(sizeof(struct process) == sizeof(nvmlProcessInfo_v1_t) &&
                   offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) == offsetof(struct process, used) &&
                   offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == offsetof(struct process, used) &&
                   offsetof(nvmlProcessInfo_t, usedGpuMemory) == offsetof(struct process, used) &&
                   sizeof(nvmlProcessInfo_v2_t) == sizeof(nvmlProcessInfo_t),
               "NVML's lists of processes have another layout");

typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, void *infos);

/* Gets the real list, of any length. *list is malloc'ed. */
static nvmlReturn_t true_list(list_function *real, nvmlDevice_t device, size_t size, char **list, unsigned int *count)
{
    unsigned int room = 64;
    for (;;) {
        *list = calloc(room, size);
        if (*list == NULL)
            return NVML_ERROR_MEMORY;
        *count = room;
        nvmlReturn_t result = real(device, count, *list);
        if (result == NVML_SUCCESS)
            return result;
        free(*list);
        if (result != NVML_ERROR_INSUFFICIENT_SIZE || room > 65536)
            return result;
        room = *count > room ? *count + 16 : 2 * room;
    }
}

static nvmlReturn_t own_processes(list_function *real, nvmlDevice_t device, unsigned int *count, void *infos,
                                  size_t size)
{
    struct own own;
    if (count == NULL || !own_memory(device, &own))
        return real(device, count, infos);
    char *list;
    unsigned int listed;
    nvmlReturn_t result = true_list(real, device, size, &list, &listed);
    if (result != NVML_SUCCESS)
        return result;
    char *mine = NULL;
    for (unsigned int i = 0; i < listed && mine == NULL; i++) {
        struct process process;
        memcpy(&process, list + i * size, sizeof(process));
        if (process.pid == (unsigned int)getpid())
            mine = list + i * size;
    }
    unsigned int needed = mine != NULL;
    if (needed > *count || (needed != 0 && infos == NULL)) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else if (mine != NULL) {
        unsigned long long used = own.footprint;
        memcpy(mine + offsetof(struct process, used), &used, sizeof(used));
        memcpy(infos, mine, size);
    }
    *count = needed;
    free(list);
    return result;
}

#define LIST(name, type)                                                                                               \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos)                                       \
    {                                                                                                                  \
        return own_processes((list_function *)GS_NVML(name), device, infoCount, infos, sizeof(type));                  \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* The only function whose result is not an error code. */
const char *nvmlErrorString(nvmlReturn_t result)
{
    if (gs_nvml_has(GS_NVML_nvmlErrorString))
        return GS_NVML(nvmlErrorString)(result);
    return result == NVML_ERROR_LIBRARY_NOT_FOUND ? "NVML Shared Library Not Found" : "Unknown Error";
}
