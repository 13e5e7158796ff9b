/* SPDX-License-Identifier: BSD-3-Clause */
/* Which backend this process's memory has. */
#ifndef GPUSHARE_BACKENDS_CHOOSE_H
#define GPUSHARE_BACKENDS_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

/* Reads GPUSHARE_BACKEND and asks the driver what it can do. False, and `why`, if sharing is not possible. */
bool gs_backend_choose(uint32_t *backend, const char **why);

#endif
