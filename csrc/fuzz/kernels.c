/* SPDX-License-Identifier: BSD-3-Clause */
/* The fuzzer's kernels, as a module for the simulated driver. The bytes show in which order they ran. */
#include "mix.h"

#include "../sim/kernel_abi.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void mix(unsigned char *a, unsigned char *b, unsigned long count, unsigned key)
{
    fuzz_mix(a, b, count, key);
}

static void launch_mix(void *const *arguments, const unsigned *grid, const unsigned *block,
                       unsigned long dynamic_shared)
{
    (void)grid;
    (void)block;
    (void)dynamic_shared;
    mix(*(unsigned char **)arguments[0], *(unsigned char **)arguments[1], *(unsigned long *)arguments[2],
        *(unsigned *)arguments[3]);
}

static const unsigned sizes[] = {8, 8, 8, 4}, offsets[] = {0, 8, 16, 24};

static const struct gpushare_sim_kernel kernels[] = {{.function = (const void *)mix,
                                                      .launch = launch_mix,
                                                      .argument_count = 4,
                                                      .argument_sizes = sizes,
                                                      .argument_offsets = offsets}};

EXPORT const struct gpushare_sim_module gpushare_sim_module = {
    .abi = GPUSHARE_SIM_KERNEL_ABI, .kernel_count = 1, .kernels = kernels};
