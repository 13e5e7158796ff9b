/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules and libraries (both are one kind of object) and their kernels (so are CUfunction and CUkernel). */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "driver.h"
#include "kernel_abi.h"

struct gpushare_digest_key;
struct sim_module;

struct sim_kernel {
    uint64_t magic;
    struct sim_module *module;
    const struct gpushare_sim_kernel *code;
    const char *name;
    unsigned arguments_size; /* packed */
    int dynamic_shared_limit;
    int carveout;
    bool loaded;                              /* queried or launched */
    const struct gpushare_digest_key *digest; /* not NULL: the interposer's (digest_kernel.h) */
};

CUresult sim_kernel_find(CUfunction handle, struct sim_kernel **kernel);

/* Loads the kernel's code into the current context, unless it is loaded. */
CUresult sim_kernel_load(struct sim_kernel *kernel);

#endif
