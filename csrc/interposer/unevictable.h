/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory that the application holds by handles and that we leave where it is, counted. */
#ifndef GPUSHARE_UNEVICTABLE_H
#define GPUSHARE_UNEVICTABLE_H

#include "driver.h"

#include <stdbool.h>

/* Allocations from this pool are the driver's: it was made to be shared between processes. */
bool gs_pool_is_forwarded(CUmemoryPool pool);

#endif
