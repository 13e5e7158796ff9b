/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where devices are on the PCI bus. After a process woke on another GPU, the driver tells that one's UUID, but goes on
 * telling where the GPU before it is (NVIDIA/cuda-checkpoint issue 48; driver 580.159 does so). NCCL and monitors look
 * a GPU up in NVML by its place on the bus, and would take the wrong one.
 */
#ifndef GPUSHARE_PCI_H
#define GPUSHARE_PCI_H

#include "driver.h"

/* From now on NVML is asked instead of the driver. */
void gs_pci_moved(void);

/* Puts what the driver said of a device right, if it is about the bus. */
void gs_pci_attribute(CUdevice_attribute attribute, CUdevice device, int *value);

#endif
