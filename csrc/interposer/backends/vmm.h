/* SPDX-License-Identifier: BSD-3-Clause */
/* The backend of blocks whose addresses the application has chosen (memory/vmm.h). */
#ifndef GPUSHARE_BACKENDS_VMM_H
#define GPUSHARE_BACKENDS_VMM_H

#include "memory/vmm.h"

extern const struct gs_vmm_backend gs_backend_vmm;

#endif
