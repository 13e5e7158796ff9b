/* SPDX-License-Identifier: BSD-3-Clause */
/* The CUDA runtime's wheel has cudaProfilerTypedefs.h, which includes this header, but not the header itself. */
#ifndef GPUSHARE_COMPAT_CUDA_PROFILER_H
#define GPUSHARE_COMPAT_CUDA_PROFILER_H

#include <cuda.h>

typedef enum CUoutput_mode_enum { CU_OUT_KEY_VALUE_PAIR = 0x00, CU_OUT_CSV = 0x01 } CUoutput_mode;

CUresult CUDAAPI cuProfilerInitialize(const char *configFile, const char *outputFile, CUoutput_mode outputMode);
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);

#endif
