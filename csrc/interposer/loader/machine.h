/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The machine's devices, as NVML lists them, whether CUDA is initialised or not: whole GPUs in NVML's order, and in the
 * place of one that is divided, its MIG slices.
 */
#ifndef GPUSHARE_LOADER_MACHINE_H
#define GPUSHARE_LOADER_MACHINE_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

enum { GS_UUID_TEXT = 48 };

struct gs_unit {
    uint8_t uuid[16];
    char text[GS_UUID_TEXT];  /* as CUDA_VISIBLE_DEVICES takes it */
    char whole[GS_UUID_TEXT]; /* the GPU's */
    unsigned gpu;             /* its number */
    bool slice;
};

/*
 * Returns how many there are, 0 where NVML cannot tell. *alike: all GPUs are of one model, so that CUDA numbers them as
 * NVML does.
 */
unsigned gs_machine_list(struct gs_unit units[GPUSHARE_MAX_PLACES], bool *alike);

struct gs_pci_address {
    unsigned domain, bus, device, function;
};

/* Reads "domain:bus:device.function" or "bus:device.function", in hexadecimal digits. */
bool gs_pci_address_read(const char *text, struct gs_pci_address *address);

/* Where the GPU of that UUID is. False if NVML cannot tell, as of a slice. */
bool gs_machine_address(const uint8_t uuid[16], struct gs_pci_address *address);

#endif
