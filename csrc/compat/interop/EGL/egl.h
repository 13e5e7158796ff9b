/* SPDX-License-Identifier: BSD-3-Clause */
/* The EGL types in cudaEGL.h, so that the driver's table can be generated without the EGL headers. */
#ifndef GPUSHARE_COMPAT_EGL_H
#define GPUSHARE_COMPAT_EGL_H

#include <stdint.h>

typedef int32_t EGLint;
typedef void *EGLImageKHR;
typedef void *EGLStreamKHR;
typedef void *EGLSyncKHR;

#endif
