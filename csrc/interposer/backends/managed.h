/* SPDX-License-Identifier: BSD-3-Clause */
/* The `managed` backend: managed memory, which is moved by prefetching. */
#ifndef GPUSHARE_BACKENDS_MANAGED_H
#define GPUSHARE_BACKENDS_MANAGED_H

#include "memory/block.h"

extern const struct gs_backend *const gs_backend_managed;

#endif
