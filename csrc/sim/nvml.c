/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The simulated libnvidia-ml. It reads the shared segment, so a process needs no CUDA context to use it. It also frees
 * the bytes of dead processes.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "base/config.h"
#include "identity.h"
#include "segment/devices.h"
#include "segment/engines.h"
#include "segment/memory.h"
#include "segment/power.h"
#include "segment/segment.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static struct sim_config config;
/* The addresses are the device handles: first of the GPUs, then of the slices. */
static char handles[2 * SIM_MAX_DEVICES];

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

/* A GPU, or (`slice`) one of the devices that it is divided into. */
struct target {
    unsigned gpu;
    unsigned first, count; /* the devices: a slice's own, or all of the GPU's */
    bool slice;
};

/* Every call with a device begins with this. */
#define ENTER_DEVICE(target)                                                                                           \
    struct target target;                                                                                              \
    do {                                                                                                               \
        nvmlReturn_t found_ = find(device, &target);                                                                   \
        if (found_ != NVML_SUCCESS)                                                                                    \
            return found_;                                                                                             \
    } while (0)

static unsigned gpus(void)
{
    return sim_segment_unit(sim_segment_devices() - 1)->gpu + 1;
}

static nvmlReturn_t find(nvmlDevice_t device, struct target *target)
{
    ENTER();
    const char *handle = (const char *)device;
    REQUIRE(handle >= handles && handle < handles + sizeof handles);
    unsigned number = (unsigned)(handle - handles);
    *target = (struct target){.slice = number >= SIM_MAX_DEVICES};
    if (target->slice) {
        target->first = number - SIM_MAX_DEVICES;
        target->count = 1;
        REQUIRE(target->first < sim_segment_devices() && sim_segment_unit(target->first)->slice >= 0);
        target->gpu = sim_segment_unit(target->first)->gpu;
        return NVML_SUCCESS;
    }
    REQUIRE(number < gpus());
    target->gpu = number;
    while (sim_segment_unit(target->first)->gpu != number)
        target->first++;
    while (target->first + target->count < sim_segment_devices() &&
           sim_segment_unit(target->first + target->count)->gpu == number)
        target->count++;
    return NVML_SUCCESS;
}

/* Whether it is divided into slices, or is one of them. */
static bool is_divided(const struct target *target)
{
    return sim_segment_unit(target->first)->slice >= 0;
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
    return put(version, length, config.driver.text);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER();
    char text[64];
    snprintf(text, sizeof text, "%d.%s", config.driver.cuda / 1000, config.driver.text);
    return put(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    REQUIRE(version != NULL);
    struct sim_driver driver;
    sim_config_driver(&driver);
    *version = driver.cuda;
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
    *count = gpus();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(device != NULL && index < gpus());
    *device = (nvmlDevice_t)(void *)&handles[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    ENTER_DEVICE(target);
    unsigned char bytes[16];
    char text[64];
    struct sim_unit unit = *sim_segment_unit(target.first);
    if (!target.slice)
        unit.slice = -1;
    sim_unit_uuid(config.name, &unit, bytes);
    sim_identity_text(bytes, target.slice, text);
    return put(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(uuid != NULL && device != NULL);
    for (size_t i = 0; i < sizeof handles; i++) {
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
    ENTER_DEVICE(target);
    REQUIRE(pci != NULL);
    *pci = (nvmlPciInfo_t){.bus = SIM_FIRST_BUS + target.gpu, .pciDeviceId = 0x10de, .pciSubSystemId = 0x10de};
    bus_id(target.gpu, pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0");
    bus_id(target.gpu, pci->busId, sizeof pci->busId, "%08X:%02X:00.0");
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
    for (unsigned i = 0; i < gpus(); i++) {
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
    ENTER_DEVICE(target);
    REQUIRE(out != NULL);
    *out = target.gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    return nvmlDeviceGetIndex(device, minor);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    ENTER_DEVICE(target);
    return put(name, length, sim_segment_unit(target.first)->model);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(target);
    REQUIRE(major != NULL && minor != NULL);
    *major = (int)sim_segment_unit(target.first)->major;
    *minor = (int)sim_segment_unit(target.first)->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER_DEVICE(target);
    (void)target;
    REQUIRE(mode != NULL);
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(target);
    REQUIRE(current != NULL && pending != NULL && !target.slice);
    *current = *pending = is_divided(&target) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_slice)
{
    ENTER_DEVICE(target);
    REQUIRE(is_slice != NULL);
    *is_slice = target.slice;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    ENTER_DEVICE(target);
    REQUIRE(count != NULL && !target.slice);
    *count = is_divided(&target) ? 7 : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *slice)
{
    ENTER_DEVICE(target);
    REQUIRE(slice != NULL && !target.slice);
    if (!is_divided(&target))
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= target.count)
        return NVML_ERROR_NOT_FOUND;
    *slice = (nvmlDevice_t)(void *)&handles[SIM_MAX_DEVICES + target.first + index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *whole)
{
    ENTER_DEVICE(target);
    REQUIRE(whole != NULL && target.slice);
    *whole = (nvmlDevice_t)(void *)&handles[target.gpu];
    return NVML_SUCCESS;
}

static void usage_of(const struct target *target, unsigned long long *total, unsigned long long *used)
{
    *total = *used = 0;
    for (unsigned i = 0; i < target->count; i++) {
        struct sim_usage usage;
        sim_segment_usage(target->first + i, &usage);
        *total += usage.total;
        *used += usage.used + usage.managed;
    }
}

static unsigned long long reserved_of(const struct target *target)
{
    return target->count * config.reserved;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(target);
    REQUIRE(memory != NULL);
    usage_of(&target, &memory->total, &memory->used);
    memory->free = memory->total - memory->used;
    /* Only the second version distinguishes memory reserved by the driver from memory in use. */
    memory->total += reserved_of(&target);
    memory->used += reserved_of(&target);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(target);
    REQUIRE(memory != NULL);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    usage_of(&target, &memory->total, &memory->used);
    memory->free = memory->total - memory->used;
    memory->reserved = reserved_of(&target);
    memory->total += memory->reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER_DEVICE(target);
    REQUIRE(utilization != NULL);
    if (is_divided(&target))
        return NVML_ERROR_NOT_SUPPORTED; /* as in NVML: neither for slices nor for their GPU */
    utilization->gpu = sim_segment_utilization(target.first);
    utilization->memory = 0;
    return NVML_SUCCESS;
}

/* As in NVML, slices have neither of the two; of a divided GPU, each device has an equal part of the power. */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    ENTER_DEVICE(target);
    REQUIRE(energy != NULL);
    if (target.slice || config.energy < 2)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned long long sum = 0;
    for (unsigned i = 0; i < target.count; i++)
        sum += sim_segment_energy_mj(target.first + i);
    *energy = sum / target.count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power)
{
    ENTER_DEVICE(target);
    REQUIRE(power != NULL);
    if (target.slice || config.energy < 1)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned sum = 0;
    for (unsigned i = 0; i < target.count; i++)
        sum += sim_segment_power_mw(target.first + i);
    *power = sum / target.count;
    return NVML_SUCCESS;
}

/* Copies the processes' figures into records of any version with `store`. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *out,
                              void (*store)(void *out, unsigned at, const struct sim_process_usage *process))
{
    ENTER_DEVICE(target);
    REQUIRE(count != NULL);
    struct sim_process_usage found[256];
    const unsigned most = sizeof found / sizeof found[0];
    unsigned number = 0;
    for (unsigned i = 0; i < target.count; i++) {
        number += sim_segment_processes(target.first + i, found + number, most - number);
        if (number > most)
            number = most;
    }
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
    ENTER_DEVICE(target);
    (void)target;
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
