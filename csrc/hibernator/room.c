/* SPDX-License-Identifier: BSD-3-Clause */
#include "room.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/locate.h"

/* The declarations of nvml.h that are used here. */
typedef void *nvml_device;
struct nvml_memory {
    unsigned long long total, left, used;
};
enum { NVML_OK = 0 };

bool hib_read_needs(const char *text, struct hib_needs *needs)
{
    char *end = NULL;
    if (strspn(text, "0123456789abcdef") != 2 * sizeof(needs->gpu) || text[2 * sizeof(needs->gpu)] != '=')
        return false;
    for (size_t i = 0; i < sizeof(needs->gpu); i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        needs->gpu[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    const char *bytes = text + 2 * sizeof(needs->gpu) + 1;
    needs->bytes = strtoull(bytes, &end, 10);
    return *bytes >= '0' && *bytes <= '9' && *end == '\0';
}

/* The names of a GPU and of a slice differ only in the prefix. */
static void name_of(const uint8_t uuid[16], const char *kind, char text[48])
{
    int length = snprintf(text, 48, "%s-", kind);
    for (unsigned i = 0; i < 16; i++)
        length += snprintf(text + length, 48 - (size_t)length, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                           uuid[i]);
}

bool hib_has_room(const struct hib_needs *needs, uint64_t *left)
{
    void *nvml = needs->bytes != 0 ? gs_locate_nvml() : NULL;
    int (*init)(void), (*by_uuid)(const char *, nvml_device *), (*memory_of)(nvml_device, struct nvml_memory *);
    if (nvml == NULL)
        return true;
    *(void **)&init = dlsym(nvml, "nvmlInit_v2");
    *(void **)&by_uuid = dlsym(nvml, "nvmlDeviceGetHandleByUUID");
    *(void **)&memory_of = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    if (init == NULL || by_uuid == NULL || memory_of == NULL || init() != NVML_OK)
        return true;
    char text[48];
    nvml_device device;
    struct nvml_memory memory;
    name_of(needs->gpu, "GPU", text);
    if (by_uuid(text, &device) != NVML_OK) {
        name_of(needs->gpu, "MIG", text);
        if (by_uuid(text, &device) != NVML_OK)
            return true;
    }
    if (memory_of(device, &memory) != NVML_OK)
        return true;
    *left = memory.left;
    return memory.left >= needs->bytes;
}
