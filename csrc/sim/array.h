/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Arrays. Programs cannot see their layout. Here it is rows with a pitch, in device memory that is counted. A mipmapped
 * array is one array for each level.
 */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "driver.h"

struct sim_array_view {
    uint64_t base;
    size_t width, height, depth; /* in elements, rows and slices; at least 1 */
    size_t element;              /* in bytes */
    size_t pitch, slice;         /* in bytes */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
};

CUresult sim_array_view(CUarray handle, struct sim_array_view *view);
CUresult sim_mipmap_view(CUmipmappedArray handle, unsigned level, struct sim_array_view *view);

/* Bytes of one channel, or 0 for a format that is not supported here. */
unsigned sim_format_size(CUarray_format format);

#endif
