/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_BASE_SAY_H
#define GPUSHARE_BASE_SAY_H

/*
 * Writes one line for the user to standard error, "gpushare: ...". For what changes how the user's program runs, and
 * for nothing else: a notebook shows it under the cell. With GPUSHARE_LOG=debug, gs_debug lines appear as well.
 */
void gs_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gs_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
