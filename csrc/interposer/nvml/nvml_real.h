/* SPDX-License-Identifier: BSD-3-Clause */
/* The real NVML; the counterpart of real.h. */
#ifndef GPUSHARE_NVML_NVML_REAL_H
#define GPUSHARE_NVML_NVML_REAL_H

#include <stdbool.h>

#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "nvml_index.h"

extern void *gs_nvml_table[GS_NVML_COUNT] __attribute__((visibility("hidden")));
extern void *const gs_nvml_entries[GS_NVML_COUNT] __attribute__((visibility("hidden")));
extern const char *const gs_nvml_names[GS_NVML_COUNT];

/*
 * Calls NVML's function of that name. Without NVML it returns NVML_ERROR_LIBRARY_NOT_FOUND, and
 * NVML_ERROR_FUNCTION_NOT_FOUND if the installed NVML is too old.
 */
#define GS_NVML(name) ((__typeof__(&name))__atomic_load_n(&gs_nvml_table[GS_NVML_##name], __ATOMIC_RELAXED))

/* Opens NVML, unless it is open. False if there is none. Any thread may call this at any time. */
bool gs_nvml_load(void);

/* Whether the installed NVML has that function. */
bool gs_nvml_has(enum gs_nvml_index function);

#endif
