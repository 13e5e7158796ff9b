/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where devices are on the PCI bus. After a process woke on another GPU, the driver tells that one's UUID, but goes on
 * telling the bus id of the GPU before it (NVIDIA/cuda-checkpoint issue 48; driver 580.159 does so). NCCL and monitors
 * look a GPU up in NVML by its bus id, and would take the wrong one.
 *
 * cuDeviceGetAttribute is left as it is: each copy of the CUDA runtime that starts compares it with what the driver has
 * by another way, and does not start where they differ (cudaErrorSoftwareValidityNotEstablished: seen with NCCL).
 */
#ifndef GPUSHARE_LOADER_PCI_H
#define GPUSHARE_LOADER_PCI_H

#include "driver.h"

/* From now on NVML is asked instead of the driver. */
void gs_pci_moved(void);

void gs_pci_after_fork(void);

#endif
