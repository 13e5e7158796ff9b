/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Shared by every module of the simulated libcuda: cuda.h with exact symbol names, and the entry checks. The modules
 * define functions as cuXyz, which are compiled as sim_cuXyz. entries.py generates the exported cuXyz, which call them.
 */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define SYMBOL(base, since, per_thread, name) extern __typeof__(name) name __asm__("sim_" #name);
#include "symbols.def"
#undef SYMBOL

#include "base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_GRANULARITY (UINT64_C(2) << 20)

enum sim_state { SIM_UNINITIALIZED, SIM_READY, SIM_FORKED, SIM_ENDED };

extern enum sim_state sim_state;
extern struct sim_config sim_config;

static inline CUresult sim_entry(void)
{
    enum sim_state state = __atomic_load_n(&sim_state, __ATOMIC_RELAXED);
    if (__builtin_expect(state == SIM_READY, 1))
        return CUDA_SUCCESS;
    return state == SIM_ENDED ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

/* Every entry point begins with one of these. */
#define SIM_ENTER()                                                                                                    \
    do {                                                                                                               \
        CUresult entry_ = sim_entry();                                                                                 \
        if (entry_ != CUDA_SUCCESS)                                                                                    \
            return entry_;                                                                                             \
    } while (0)

#define SIM_TRY(expression)                                                                                            \
    do {                                                                                                               \
        CUresult result_ = (expression);                                                                               \
        if (result_ != CUDA_SUCCESS)                                                                                   \
            return result_;                                                                                            \
    } while (0)

#define SIM_REQUIRE(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return CUDA_ERROR_INVALID_VALUE;                                                                           \
    } while (0)

/* Also finds the current context, which must exist and have no sticky error. */
#define SIM_ENTER_CONTEXT(variable)                                                                                    \
    struct sim_context *variable = NULL;                                                                               \
    SIM_TRY(sim_context_enter(&variable))

#endif
