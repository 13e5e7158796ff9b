/* SPDX-License-Identifier: BSD-3-Clause */
#include "loader/machine.h"

#include "loader/locate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/*
 * Declarations of nvml.h, which is not available in this build. NVML is located when it is needed, and may be absent.
 */
typedef void *nvml_device;
enum { NVML_OK = 0, NVML_MIG_ENABLED = 1, NAME_ROOM = 96 };

/* nvmlPciInfo_t */
struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char text[32];
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *text, unsigned size);
    int (*name)(nvml_device device, char *text, unsigned size);
    int (*by_uuid)(const char *text, nvml_device *device);
    int (*pci)(nvml_device device, struct nvml_pci *pci);
    int (*mig_mode)(nvml_device device, unsigned *now, unsigned *pending);
    int (*most_slices)(nvml_device device, unsigned *count);
    int (*slice)(nvml_device device, unsigned index, nvml_device *slice);
};

static bool find(const struct nvml *nvml, const char *name, void *function)
{
    void *address = dlsym(nvml->library, name);
    memcpy(function, &address, sizeof(address));
    return address != NULL;
}

static bool open_nvml(struct nvml *nvml)
{
    nvml->library = gs_locate_nvml();
    if (nvml->library == NULL)
        return false;
    bool whole = find(nvml, "nvmlInit_v2", &nvml->init) && find(nvml, "nvmlShutdown", &nvml->shutdown) &&
                 find(nvml, "nvmlDeviceGetCount_v2", &nvml->count) &&
                 find(nvml, "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index) &&
                 find(nvml, "nvmlDeviceGetUUID", &nvml->uuid) && find(nvml, "nvmlDeviceGetName", &nvml->name) &&
                 find(nvml, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid) &&
                 find(nvml, "nvmlDeviceGetPciInfo_v3", &nvml->pci);
    /* Drivers before 450 have no slices. */
    if (!find(nvml, "nvmlDeviceGetMigMode", &nvml->mig_mode) ||
        !find(nvml, "nvmlDeviceGetMaxMigDeviceCount", &nvml->most_slices) ||
        !find(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", &nvml->slice))
        nvml->mig_mode = NULL;
    return whole && nvml->init() == NVML_OK;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "GPU-8-4-4-4-12" or "MIG-8-4-4-4-12"; not the longer names of slices before driver 470. */
static bool read_uuid(const char *text, uint8_t uuid[16])
{
    unsigned digits = 0;
    if (strlen(text) != 40)
        return false;
    for (const char *at = text + 4; *at != '\0'; at++) {
        int value = digit(*at);
        if (value < 0 && *at != '-')
            return false;
        if (value < 0)
            continue;
        if (digits == 32)
            return false;
        uuid[digits / 2] = (uint8_t)((digits % 2 == 0 ? 0 : uuid[digits / 2] << 4) | value);
        digits++;
    }
    return digits == 32;
}

static bool describe(const struct nvml *nvml, nvml_device device, struct gs_unit *unit)
{
    return nvml->uuid(device, unit->text, sizeof(unit->text)) == NVML_OK && read_uuid(unit->text, unit->uuid);
}

static unsigned add_gpu(const struct nvml *nvml, nvml_device device, unsigned gpu, struct gs_unit *units, unsigned room)
{
    unsigned mode = 0, pending, most = 0, count = 0;
    struct gs_unit whole = {.gpu = gpu};
    if (room == 0 || !describe(nvml, device, &whole))
        return 0;
    memcpy(whole.whole, whole.text, sizeof(whole.whole));
    if (nvml->mig_mode == NULL || nvml->mig_mode(device, &mode, &pending) != NVML_OK || mode != NVML_MIG_ENABLED) {
        units[0] = whole;
        return 1;
    }
    if (nvml->most_slices(device, &most) != NVML_OK)
        return 0;
    for (unsigned i = 0; i < most && count < room; i++) {
        nvml_device slice;
        struct gs_unit unit = whole;
        unit.slice = true;
        if (nvml->slice(device, i, &slice) == NVML_OK && describe(nvml, slice, &unit))
            units[count++] = unit;
    }
    return count;
}

unsigned gs_machine_list(struct gs_unit units[GPUSHARE_MAX_PLACES], bool *alike)
{
    struct nvml nvml = {0};
    unsigned gpus = 0, count = 0;
    char first[NAME_ROOM] = "", name[NAME_ROOM];
    *alike = true;
    /* The library stays loaded, because programs that also use it keep its state. */
    if (!open_nvml(&nvml))
        return 0;
    if (nvml.count(&gpus) != NVML_OK)
        gpus = 0;
    for (unsigned i = 0; i < gpus; i++) {
        nvml_device device;
        /* If this process has no access to a device, CUDA does not show it either. */
        if (nvml.by_index(i, &device) != NVML_OK || nvml.name(device, name, sizeof(name)) != NVML_OK)
            continue;
        if (first[0] == '\0')
            memcpy(first, name, sizeof(first));
        *alike = *alike && strcmp(first, name) == 0;
        count += add_gpu(&nvml, device, i, units + count, GPUSHARE_MAX_PLACES - count);
    }
    nvml.shutdown();
    return count;
}

bool gs_pci_address_read(const char *text, struct gs_pci_address *address)
{
    struct gs_pci_address read = {0}, without_domain = {0};
    bool whole = sscanf(text, "%x:%x:%x.%x", &read.domain, &read.bus, &read.device, &read.function) >= 3;
    bool short_one =
        sscanf(text, "%x:%x.%x", &without_domain.bus, &without_domain.device, &without_domain.function) >= 2;
    *address = whole ? read : without_domain;
    return whole || short_one;
}

bool gs_machine_address(const uint8_t uuid[16], struct gs_pci_address *address)
{
    struct nvml nvml = {0};
    struct nvml_pci pci;
    nvml_device device;
    char text[GS_UUID_TEXT] = "GPU-";
    size_t length = strlen(text);
    for (unsigned i = 0; i < 16; i++) {
        bool parts = i == 4 || i == 6 || i == 8 || i == 10;
        length += (size_t)snprintf(text + length, sizeof(text) - length, parts ? "-%02x" : "%02x", uuid[i]);
    }
    if (!open_nvml(&nvml))
        return false;
    bool found = nvml.by_uuid(text, &device) == NVML_OK && nvml.pci(device, &pci) == NVML_OK &&
                 gs_pci_address_read(pci.text, address);
    nvml.shutdown();
    return found;
}
