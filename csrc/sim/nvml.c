/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The simulated libnvidia-ml. It reads the shared segment, so a process needs no CUDA context to use it, and it gives
 * dead processes' bytes back as it looks.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "config.h"
#include "identity.h"
#include "segment.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.00.sim"
#define CUDA_VERSION_NUMBER 13000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static struct sim_config config;
static char handles[SIM_MAX_DEVICES]; /* their addresses are the device handles */

static void after_fork(void)
{
    sim_segment_forget();
    users = 0;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    static bool watched;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        if (!sim_config_read(&config))
            result = NVML_ERROR_INVALID_ARGUMENT;
        else if (!sim_segment_attach(&config))
            result = NVML_ERROR_DRIVER_NOT_LOADED;
        else if (!watched)
            watched = pthread_atfork(NULL, NULL, after_fork) == 0;
    }
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (--users == 0)
        sim_segment_detach();
    pthread_mutex_unlock(&lock);
    return result;
}

__attribute__((destructor)) static void end(void)
{
    if (users > 0)
        sim_segment_detach();
}

#define ENTER()                                                                                                        \
    do {                                                                                                               \
        if (users == 0)                                                                                                \
            return NVML_ERROR_UNINITIALIZED;                                                                           \
    } while (0)

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
    } while (0)

/* Every call that names a device begins with this. */
#define ENTER_DEVICE(index)                                                                                            \
    unsigned index;                                                                                                    \
    do {                                                                                                               \
        nvmlReturn_t found_ = find(device, &index);                                                                    \
        if (found_ != NVML_SUCCESS)                                                                                    \
            return found_;                                                                                             \
    } while (0)

static nvmlReturn_t find(nvmlDevice_t device, unsigned *index)
{
    ENTER();
    const char *handle = (const char *)device;
    REQUIRE(handle >= handles && handle < handles + sim_segment_devices());
    *index = (unsigned)(handle - handles);
    return NVML_SUCCESS;
}

static nvmlReturn_t put(char *text, unsigned length, const char *value)
{
    REQUIRE(text != NULL);
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(text, value);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER();
    return put(version, length, DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER();
    return put(version, length, "13." DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    REQUIRE(version != NULL);
    *version = CUDA_VERSION_NUMBER;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    ENTER();
    REQUIRE(name != NULL && length > 0);
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    REQUIRE(count != NULL);
    *count = sim_segment_devices();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(device != NULL && index < sim_segment_devices());
    *device = (nvmlDevice_t)(void *)&handles[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    ENTER_DEVICE(index);
    unsigned char bytes[16];
    char text[64] = "GPU-";
    sim_identity_uuid(config.name, index, bytes);
    for (unsigned i = 0; i < sizeof bytes; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%02x",
                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
    return put(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(uuid != NULL && device != NULL);
    for (unsigned i = 0; i < sim_segment_devices(); i++) {
        char own[64];
        *device = (nvmlDevice_t)(void *)&handles[i];
        if (nvmlDeviceGetUUID(*device, own, sizeof own) == NVML_SUCCESS && strcasecmp(own, uuid) == 0)
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static void bus_id(unsigned index, char *text, size_t size, const char *format)
{
    snprintf(text, size, format, 0u, SIM_FIRST_BUS + index);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(index);
    REQUIRE(pci != NULL);
    *pci = (nvmlPciInfo_t){.bus = SIM_FIRST_BUS + index, .pciDeviceId = 0x10de, .pciSubSystemId = 0x10de};
    bus_id(index, pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0");
    bus_id(index, pci->busId, sizeof pci->busId, "%08X:%02X:00.0");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(bus != NULL && device != NULL);
    for (unsigned i = 0; i < sim_segment_devices(); i++) {
        char legacy[32], full[32];
        bus_id(i, legacy, sizeof legacy, "%04X:%02X:00.0");
        bus_id(i, full, sizeof full, "%08X:%02X:00.0");
        if (strcasecmp(bus, legacy) == 0 || strcasecmp(bus, full) == 0)
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(index);
    REQUIRE(out != NULL);
    *out = index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    return nvmlDeviceGetIndex(device, minor);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    ENTER_DEVICE(index);
    (void)index;
    return put(name, length, SIM_DEVICE_NAME);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(index);
    (void)index;
    REQUIRE(major != NULL && minor != NULL);
    *major = (int)config.major;
    *minor = (int)config.minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER_DEVICE(index);
    (void)index;
    REQUIRE(mode != NULL);
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(index);
    (void)index;
    (void)current;
    (void)pending;
    return NVML_ERROR_NOT_SUPPORTED;
}

static void usage_of(unsigned index, unsigned long long *total, unsigned long long *used)
{
    struct sim_usage usage;
    sim_segment_usage(index, &usage);
    *total = usage.total;
    *used = usage.used + usage.managed;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(index);
    REQUIRE(memory != NULL);
    usage_of(index, &memory->total, &memory->used);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(index);
    REQUIRE(memory != NULL);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    usage_of(index, &memory->total, &memory->used);
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER_DEVICE(index);
    REQUIRE(utilization != NULL);
    utilization->gpu = sim_segment_utilization(index);
    utilization->memory = 0;
    return NVML_SUCCESS;
}

/* The processes' figures, copied into records of whatever version by `store`. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *out,
                              void (*store)(void *out, unsigned at, const struct sim_process_usage *process))
{
    ENTER_DEVICE(index);
    REQUIRE(count != NULL);
    struct sim_process_usage found[256];
    unsigned number = sim_segment_processes(index, found, sizeof found / sizeof found[0]);
    if (number > sizeof found / sizeof found[0])
        number = sizeof found / sizeof found[0];
    unsigned room = *count;
    *count = number;
    if (number > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    REQUIRE(out != NULL || number == 0);
    for (unsigned i = 0; i < number; i++)
        store(out, i, &found[i]);
    return NVML_SUCCESS;
}

static void store_v1(void *out, unsigned at, const struct sim_process_usage *process)
{
    ((nvmlProcessInfo_v1_t *)out)[at] =
        (nvmlProcessInfo_v1_t){.pid = (unsigned)process->pid, .usedGpuMemory = process->bytes};
}

static void store_v2(void *out, unsigned at, const struct sim_process_usage *process)
{
    ((nvmlProcessInfo_v2_t *)out)[at] = (nvmlProcessInfo_v2_t){.pid = (unsigned)process->pid,
                                                               .usedGpuMemory = process->bytes,
                                                               .gpuInstanceId = 0xFFFFFFFF,
                                                               .computeInstanceId = 0xFFFFFFFF};
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    return processes(device, count, infos, store_v1);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
    return processes(device, count, infos, store_v2);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    return processes(device, count, infos, store_v2);
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count)
{
    ENTER_DEVICE(index);
    (void)index;
    REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return none(device, count);
}

const char *nvmlErrorString(nvmlReturn_t error)
{
    switch (error) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}
