/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "stream.h"

struct sim_copy {
    uint64_t to, from;
    size_t width, height, depth; /* in bytes, rows, slices */
    size_t to_pitch, from_pitch, to_slice, from_slice;
};

struct sim_set {
    uint64_t to;
    size_t pitch, width, height;
    uint32_t value;
    unsigned element; /* in bytes */
};

struct sim_op *sim_op_copy(const struct sim_copy *copy);
struct sim_op *sim_op_set(const struct sim_set *set);

/* Copies in the stream between memory of any kind. A synchronous copy is complete on return. */
CUresult sim_copy_submit(const struct sim_copy *copy, CUstream stream, enum sim_stream_default meant, bool synchronous);

/* The operation of a graph node. As in the driver, the device memory in the description is looked up. */
CUresult sim_op_copy_node(struct sim_op **op, const CUDA_MEMCPY3D *description);
CUresult sim_op_set_node(struct sim_op **op, const struct sim_set *set);

/* Reads a 3D description. */
CUresult sim_copy_3d(const CUDA_MEMCPY3D *description, struct sim_copy *copy);

/* The reverse: describes a copy by addresses. */
void sim_copy_describe(const struct sim_copy *copy, CUDA_MEMCPY3D *description);

#endif
