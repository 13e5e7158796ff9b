/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Finds a library of the driver behind a shim that has its name.
 */
#ifndef GPUSHARE_LOADER_LOCATE_H
#define GPUSHARE_LOADER_LOCATE_H

/*
 * Opens the library `soname`: the file that the environment variable `variable` names, or the first that the dynamic
 * linker would find, leaving out every library that exports `own` (ourselves). `flags` are dlopen's.
 * Returns its handle, and its path in *path (malloc'ed); NULL if there is none.
 */
void *gs_locate(const char *variable, const char *soname, const char *own, int flags, char **path);

/* Opens NVML, behind our shim of it. Returns its handle, NULL if there is none. */
void *gs_locate_nvml(void);

#endif
