/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The simulated NVML, but GPUs whose indices are in the file $LOST_GPUS have fallen off the bus. With an r in it the
 * driver is being loaded anew: no GPU can be read until it is gone, and NVML has been, too.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOST 15 /* NVML_ERROR_GPU_IS_LOST */

typedef struct device *device_t;

static device_t known[16];
static bool stale;

static void *next(const char *name)
{
    static void *sim;
    if (sim == NULL)
        sim = dlopen(getenv("SIM_NVML"), RTLD_NOW | RTLD_LOCAL);
    return dlsym(sim, name);
}

static bool lost(device_t device)
{
    char text[64] = "";
    FILE *file = fopen(getenv("LOST_GPUS"), "r");
    if (file != NULL) {
        (void)!fread(text, 1, sizeof text - 1, file);
        fclose(file);
    }
    stale |= strchr(text, 'r') != NULL;
    for (const char *digit = text; *digit != '\0'; digit++) {
        if (*digit >= '0' && *digit <= '9' && known[*digit - '0'] == device)
            return true;
    }
    return stale;
}

#define FORWARD(type, name, parameters, arguments)                                                                     \
    type name parameters;                                                                                              \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return ((type(*) parameters)next(#name))arguments;                                                             \
    }

FORWARD(int, nvmlInitWithFlags, (unsigned flags), (flags))
FORWARD(int, nvmlInit_v2, (void), ())
FORWARD(const char *, nvmlErrorString, (int result), (result))
FORWARD(int, nvmlSystemGetCudaDriverVersion_v2, (int *version), (version))
FORWARD(int, nvmlDeviceGetCount_v2, (unsigned *count), (count))
FORWARD(int, nvmlDeviceGetName, (device_t device, char *name, unsigned size), (device, name, size))
FORWARD(int, nvmlDeviceGetUUID, (device_t device, char *uuid, unsigned size), (device, uuid, size))

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    stale = false;
    return ((int (*)(void))next("nvmlShutdown"))();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    int result = ((int (*)(unsigned, device_t *))next("nvmlDeviceGetHandleByIndex_v2"))(index, device);
    if (result != 0)
        return result;
    known[index] = *device;
    return lost(*device) ? LOST : 0;
}

int nvmlDeviceGetMemoryInfo(device_t device, void *memory);
int nvmlDeviceGetMemoryInfo(device_t device, void *memory)
{
    if (lost(device))
        return LOST;
    return ((int (*)(device_t, void *))next("nvmlDeviceGetMemoryInfo"))(device, memory);
}
