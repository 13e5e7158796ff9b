/* SPDX-License-Identifier: BSD-3-Clause */
/* The VDPAU types in cudaVDPAU.h, so that the driver's table can be generated without the VDPAU headers. */
#ifndef GPUSHARE_COMPAT_VDPAU_H
#define GPUSHARE_COMPAT_VDPAU_H

#include <stdint.h>

typedef uint32_t VdpDevice;
typedef uint32_t VdpVideoSurface;
typedef uint32_t VdpOutputSurface;
typedef int VdpGetProcAddress(VdpDevice device, uint32_t function_id, void **function_pointer);

#endif
