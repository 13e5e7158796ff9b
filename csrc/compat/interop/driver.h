/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Declares every function of the driver under the name of its symbol. __CUDA_API_VERSION_INTERNAL makes cuda.h declare
 * all versions and stream variants without macros that rename functions.
 */
#ifndef GPUSHARE_COMPAT_DRIVER_H
#define GPUSHARE_COMPAT_DRIVER_H

#ifndef __CUDA_API_VERSION_INTERNAL
#error "compile with -D__CUDA_API_VERSION_INTERNAL"
#endif

/* Definitions inherit this visibility, so a file that defines a function of the driver exports it. */
#pragma GCC visibility push(default)
/* Included first: cudaVDPAU.h uses its types without including it. */
#include <vdpau/vdpau.h>

#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <cudaProfiler.h>
#include <cudaVDPAU.h>
#pragma GCC visibility pop

#endif
