/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The PCI addresses of devices. After a process has woken on another GPU, the driver reports the new GPU's UUID but
 * still the bus id of the old one. Driver 580.159 does so (NVIDIA/cuda-checkpoint issue 48). NCCL and monitors look up
 * a GPU in NVML by its bus id, and would use the wrong one.
 *
 * cuDeviceGetAttribute is not changed. Each copy of the CUDA runtime compares it at start with what the driver reports
 * in another way. If they differ, the runtime does not start (cudaErrorSoftwareValidityNotEstablished: seen with NCCL).
 */
#ifndef GPUSHARE_LOADER_PCI_H
#define GPUSHARE_LOADER_PCI_H

#include "driver.h"

/* From now on, the addresses come from NVML instead of the driver. */
void gs_pci_moved(void);

void gs_pci_after_fork(void);

#endif
