/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds the driver's library when a shim with the same name comes before it. */
#ifndef GPUSHARE_LOADER_LOCATE_H
#define GPUSHARE_LOADER_LOCATE_H

/*
 * Opens the library `soname`: the file in the environment variable `variable`, or the first that the dynamic linker
 * would find. Skips every library that exports `own`, which is the shim itself. `flags` are dlopen's. Returns the
 * handle, and the path in *path (malloc'ed). NULL if there is none.
 */
void *gs_locate(const char *variable, const char *soname, const char *own, int flags, char **path);

/* Opens the NVML that comes after the shim. Returns its handle, or NULL if there is none. */
void *gs_locate_nvml(void);

#endif
