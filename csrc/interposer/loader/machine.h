/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The machine's devices as NVML lists them, whether CUDA is initialised or not. Whole GPUs are in NVML's order. A GPU
 * that is divided is replaced by its MIG slices.
 */
#ifndef GPUSHARE_LOADER_MACHINE_H
#define GPUSHARE_LOADER_MACHINE_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

enum { GS_UUID_TEXT = 48 };

struct gs_unit {
    uint8_t uuid[16];
    char text[GS_UUID_TEXT];  /* as in CUDA_VISIBLE_DEVICES */
    char whole[GS_UUID_TEXT]; /* of the whole GPU */
    unsigned gpu;             /* number of the GPU */
    bool slice;
};

/*
 * Returns the number of devices, or 0 if NVML cannot list them. *alike: all GPUs are of one model, so that CUDA numbers
 * them as NVML does.
 */
unsigned gs_machine_list(struct gs_unit units[GPUSHARE_MAX_PLACES], bool *alike);

struct gs_pci_address {
    unsigned domain, bus, device, function;
};

/* Reads "domain:bus:device.function" or "bus:device.function", in hexadecimal digits. */
bool gs_pci_address_read(const char *text, struct gs_pci_address *address);

/* The PCI address of the GPU with that UUID. False if NVML does not report it, for example for a slice. */
bool gs_machine_address(const uint8_t uuid[16], struct gs_pci_address *address);

#endif
