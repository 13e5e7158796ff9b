/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "module.h"
#include "stream.h"

struct sim_launch {
    struct sim_kernel *kernel;
    unsigned grid[3], block[3];
    unsigned shared;
    uint64_t duration;                      /* nanoseconds of the compute engine that it takes at least */
    _Alignas(16) unsigned char arguments[]; /* packed */
};

CUresult sim_op_launch(struct sim_op **op, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, void **parameters, void **extra);

/* For tests: sets the least duration of kernels that this process launches or adds to a graph from now on. */
__attribute__((visibility("default"))) void gpushare_sim_duration(uint64_t nanoseconds);

/* The parameters of a launch operation. `pointers` has room for one pointer for each argument. */
void sim_op_launch_parameters(struct sim_op *op, void **pointers, CUDA_KERNEL_NODE_PARAMS *parameters);

#endif
