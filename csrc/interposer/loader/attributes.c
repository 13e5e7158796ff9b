/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Libraries ask the device what it can do before they do it. What is refused (driver_api.csv) must not be promised:
 * NCCL gives up, instead of going another way, if multicast is said to be supported and cuMulticastCreate then fails.
 */
#include "base/session.h"
#include "loader/real.h"

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult result = GS_REAL(cuDeviceGetAttribute)(pi, attrib, dev);
    if (result == CUDA_SUCCESS && attrib == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED && gs_session_attached())
        *pi = 0;
    return result;
}
