/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "module.h"
#include "stream.h"

struct sim_launch {
    struct sim_kernel *kernel;
    unsigned grid[3], block[3];
    unsigned shared;
    _Alignas(16) unsigned char arguments[]; /* packed */
};

CUresult sim_op_launch(struct sim_op **op, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, void **parameters, void **extra);

#endif
