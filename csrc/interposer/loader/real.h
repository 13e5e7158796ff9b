/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The real driver. The first call of any of its functions opens it. A process that does not use CUDA only pays for the
 * mapping of this library.
 *
 * Names are symbols here: GS_REAL(cuMemAlloc) is the function of CUDA 2, not the one that cuda.h's macros map the name
 * to.
 */
#ifndef GPUSHARE_LOADER_REAL_H
#define GPUSHARE_LOADER_REAL_H

#include <stdbool.h>

#include "driver.h"
#include "real_index.h"

/*
 * The driver's functions, indexed by enum gs_fn_index. Until the driver is open, the entries are stubs that open it.
 * Afterwards, functions that the driver lacks are stubs that return CUDA_ERROR_NOT_SUPPORTED, or CUDA_ERROR_NO_DEVICE
 * if there is no driver.
 */
extern void *gs_real_table[GS_FN_COUNT] __attribute__((visibility("hidden")));

/* The interposer's functions, and all names, in the same order. */
extern void *const gs_real_entries[GS_FN_COUNT] __attribute__((visibility("hidden")));
extern const char *const gs_real_names[GS_FN_COUNT];

/* Calls the driver's function of that name: GS_REAL(cuMemAlloc_v2)(&pointer, size). */
#define GS_REAL(name) ((__typeof__(&name))__atomic_load_n(&gs_real_table[GS_FN_##name], __ATOMIC_RELAXED))

/* Opens the driver, unless it is open. False if there is none. Any thread may call this at any time. */
bool gs_real_load(void);

/* Whether the driver has that function. */
bool gs_real_has(enum gs_fn_index function);

/* The path of the driver's library, or NULL if there is none. */
const char *gs_real_path(void);

/*
 * Returns the interposer's function for an address that the real cuGetProcAddress returned for `symbol`. NULL if the
 * address is not in the table. `per_thread` distinguishes variants that have the same address in the driver.
 */
void *gs_real_translate(void *address, const char *symbol, bool per_thread);

#endif
