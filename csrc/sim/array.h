/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Arrays. Their layout is nobody's business; here it is rows of a pitch, in device memory that is counted. Mipmapped
 * arrays are one array for each level.
 */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "driver.h"

struct sim_array_view {
    uint64_t base;
    size_t width, height, depth; /* in elements, rows and slices; at least 1 */
    size_t element;              /* bytes */
    size_t pitch, slice;         /* bytes */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
};

CUresult sim_array_view(CUarray handle, struct sim_array_view *view);
CUresult sim_mipmap_view(CUmipmappedArray handle, unsigned level, struct sim_array_view *view);

/* Bytes of one channel, or 0 for a format that does not exist here. */
unsigned sim_format_size(CUarray_format format);

#endif
