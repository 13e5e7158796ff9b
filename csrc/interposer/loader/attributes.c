/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Libraries query what the device supports before they use it. What the interposer refuses (driver_api.csv) must not be
 * reported as supported. For example, if multicast is reported and cuMulticastCreate then fails, NCCL fails instead of
 * falling back.
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
