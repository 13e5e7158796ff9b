/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that is created and mapped as it comes, and copied, unmapped and released as it goes. */
#ifndef GPUSHARE_BACKENDS_SWAP_H
#define GPUSHARE_BACKENDS_SWAP_H

#include "memory/block.h"

extern const struct gs_backend *const gs_backend_swap;

#endif
