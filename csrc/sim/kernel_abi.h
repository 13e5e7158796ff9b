/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a module image, a shared object for the host, exports for the simulated driver: `gpushare_sim_module`. The
 * simulated NVRTC writes it; a module written by hand may too. C and C++.
 */
#ifndef GPUSHARE_SIM_KERNEL_ABI_H
#define GPUSHARE_SIM_KERNEL_ABI_H

#define GPUSHARE_SIM_KERNEL_ABI 1

struct gpushare_sim_kernel {
    /* The kernel itself: the name of the symbol at this address is the kernel's name. */
    const void *function;
    /* Runs the whole grid; grid and block are three numbers each. */
    void (*launch)(void *const *arguments, const unsigned *grid, const unsigned *block, unsigned long dynamic_shared);
    unsigned argument_count;
    const unsigned *argument_sizes;
    const unsigned *argument_offsets; /* in the packed form, naturally aligned */
};

struct gpushare_sim_module {
    unsigned abi;
    unsigned kernel_count;
    const struct gpushare_sim_kernel *kernels;
};

/* What a texture or surface object's handle points to. Formats, modes and filters are those of cuda.h. */

#define GPUSHARE_SIM_LEVELS 16

struct gpushare_sim_level {
    char *base; /* NULL: the object was destroyed */
    unsigned width, height, depth;
    unsigned long pitch, slice;
};

struct gpushare_sim_texture {
    unsigned format, channels, channel_size /* bytes */, filter, address[3];
    unsigned linear, normalized, as_integer, surface;
    float border[4];
    unsigned level_count;
    struct gpushare_sim_level levels[GPUSHARE_SIM_LEVELS];
};

/* What the handle of a conditional node's value points to: a kernel sets the value by storing it here. */
struct gpushare_sim_condition {
    unsigned value;
};

#endif
