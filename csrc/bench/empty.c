/* SPDX-License-Identifier: BSD-3-Clause */
/* A module for the simulated driver with one CUDA kernel that does nothing. */
#include "../sim/kernel_abi.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void empty(void)
{
}

static void launch(void *const *arguments, const unsigned *grid, const unsigned *block, unsigned long dynamic_shared)
{
    (void)arguments;
    (void)grid;
    (void)block;
    (void)dynamic_shared;
}

static const struct gpushare_sim_kernel kernels[] = {{.function = (const void *)empty, .launch = launch}};

EXPORT const struct gpushare_sim_module gpushare_sim_module = {
    .abi = GPUSHARE_SIM_KERNEL_ABI, .kernel_count = 1, .kernels = kernels};
