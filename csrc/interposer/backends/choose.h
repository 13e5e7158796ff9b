/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the backend of this process's memory. */
#ifndef GPUSHARE_BACKENDS_CHOOSE_H
#define GPUSHARE_BACKENDS_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Reads GPUSHARE_BACKEND and asks the driver what it supports. False, with the reason in *why, if sharing is not
 * possible.
 */
bool gs_backend_choose(uint32_t *backend, const char **why);

#endif
