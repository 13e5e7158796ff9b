/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A module image is a shared object for the host that exports `gpushare_sim_module` for the simulated driver. The
 * simulated NVRTC generates it, and it can also be written by hand. For C and C++.
 */
#ifndef GPUSHARE_SIM_KERNEL_ABI_H
#define GPUSHARE_SIM_KERNEL_ABI_H

#define GPUSHARE_SIM_KERNEL_ABI 1

struct gpushare_sim_kernel {
    /* The kernel itself. The name of the symbol at this address is the kernel's name. */
    const void *function;
    /* Runs the whole grid; `grid` and `block` have three numbers each. */
    void (*launch)(void *const *arguments, const unsigned *grid, const unsigned *block, unsigned long dynamic_shared);
    unsigned argument_count;
    const unsigned *argument_sizes;
    const unsigned *argument_offsets; /* in packed form, naturally aligned */
};

struct gpushare_sim_module {
    unsigned abi;
    unsigned kernel_count;
    const struct gpushare_sim_kernel *kernels;
};

/* The target of a texture or surface object's handle. Formats, modes and filters are those of cuda.h. */

#define GPUSHARE_SIM_LEVELS 16

struct gpushare_sim_level {
    char *base; /* NULL: the object was destroyed */
    unsigned width, height, depth;
    unsigned long pitch, slice;
};

struct gpushare_sim_texture {
    unsigned format, channels, channel_size /* in bytes */, filter, address[3];
    unsigned linear, normalized, as_integer, surface;
    float border[4];
    unsigned level_count;
    struct gpushare_sim_level levels[GPUSHARE_SIM_LEVELS];
};

/* The target of a conditional node's handle. A kernel sets the value by storing it here. */
struct gpushare_sim_condition {
    unsigned value;
};

#endif
