/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_BASE_PRINT_H
#define GPUSHARE_BASE_PRINT_H

/*
 * Prints one line for the user to standard error, "gpushare: ...". Use it only for what changes how the user's program
 * runs: a notebook shows the line under the cell. gs_debug prints only if GPUSHARE_LOG=debug is set.
 */
void gs_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gs_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
