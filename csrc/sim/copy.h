/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "stream.h"

struct sim_copy {
    uint64_t to, from;
    size_t width, height, depth; /* bytes, rows, slices */
    size_t to_pitch, from_pitch, to_slice, from_slice;
};

struct sim_set {
    uint64_t to;
    size_t pitch, width, height;
    uint32_t value;
    unsigned element; /* bytes */
};

struct sim_op *sim_op_copy(const struct sim_copy *copy);
struct sim_op *sim_op_set(const struct sim_set *set);

/* Reads a 3D description; arrays are not supported. */
CUresult sim_copy_3d(const CUDA_MEMCPY3D *description, struct sim_copy *copy);

#endif
