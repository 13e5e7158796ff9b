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

/* Copies in the stream between memory of any kind; a synchronous copy is over on return. */
CUresult sim_copy_submit(const struct sim_copy *copy, CUstream stream, enum sim_stream_default meant, bool synchronous);

/* What nodes of graphs repeat. As the driver does, it looks up the device memory that is named. */
CUresult sim_op_copy_node(struct sim_op **op, const CUDA_MEMCPY3D *description);
CUresult sim_op_set_node(struct sim_op **op, const struct sim_set *set);

/* Reads a 3D description. */
CUresult sim_copy_3d(const CUDA_MEMCPY3D *description, struct sim_copy *copy);

/* The other way round, in terms of addresses. */
void sim_copy_describe(const struct sim_copy *copy, CUDA_MEMCPY3D *description);

#endif
