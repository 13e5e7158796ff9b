/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The real driver. It is opened by the first call of any of its functions, and never before: a process that does not
 * use CUDA pays for nothing but the mapping of this library.
 *
 * Names mean symbols here: GS_REAL(cuMemAlloc) is the function of CUDA 2, not what cuda.h's macros make of the name.
 */
#ifndef GPUSHARE_LOADER_REAL_H
#define GPUSHARE_LOADER_REAL_H

#include <stdbool.h>

#include "driver.h"
#include "real_index.h"

/*
 * The driver's functions by enum gs_fn_index. Until the driver is open, entries that open it first; afterwards, for
 * what the driver lacks, functions that return CUDA_ERROR_NOT_SUPPORTED, or CUDA_ERROR_NO_DEVICE if there is none.
 */
extern void *gs_real_table[GS_FN_COUNT] __attribute__((visibility("hidden")));

/* Our own functions, and all names, in the same order. */
extern void *const gs_real_entries[GS_FN_COUNT] __attribute__((visibility("hidden")));
extern const char *const gs_real_names[GS_FN_COUNT];

/* The real function of that name, to be called: GS_REAL(cuMemAlloc_v2)(&pointer, size). */
#define GS_REAL(name) ((__typeof__(&name))__atomic_load_n(&gs_real_table[GS_FN_##name], __ATOMIC_RELAXED))

/* Opens the driver, if that was not done yet. False if there is none. Any thread may call it at any time. */
bool gs_real_load(void);

/* Does the driver have that function? */
bool gs_real_has(enum gs_fn_index function);

/* The path of the driver's library, or NULL if there is none. */
const char *gs_real_path(void);

/*
 * Our function for an address that the real cuGetProcAddress returned when it was asked for `symbol`, or NULL if the
 * address is none of the table's. Variants that the driver has at one address are told apart by `per_thread`.
 */
void *gs_real_translate(void *address, const char *symbol, bool per_thread);

#endif
