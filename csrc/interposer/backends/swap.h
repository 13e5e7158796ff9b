/* SPDX-License-Identifier: BSD-3-Clause */
/* The `swap` backend: memory is created and mapped on restore, and copied, unmapped and released on eviction. */
#ifndef GPUSHARE_BACKENDS_SWAP_H
#define GPUSHARE_BACKENDS_SWAP_H

#include "memory/block.h"

extern const struct gs_backend *const gs_backend_swap;

#endif
