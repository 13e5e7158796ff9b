/* SPDX-License-Identifier: BSD-3-Clause */
/* The backend of blocks whose addresses the application chose (vmm.h). The caller holds the block. */
#ifndef GPUSHARE_BACKENDS_VMM_H
#define GPUSHARE_BACKENDS_VMM_H

#include "memory/block.h"
#include "memory/vmm.h"

enum { GS_VMM_GRANULARITY = 2 << 20 };

/* Brings what is resident of the block to a new mapping, or takes it away. A failure leaves nothing behind. */
CUresult gs_vmm_apply_mapping(struct gs_block *block, const struct gs_vmm_mapping *mapping);
void gs_vmm_withdraw_mapping(struct gs_block *block, const struct gs_vmm_mapping *mapping);
CUresult gs_vmm_apply_access(struct gs_block *block, const struct gs_vmm_mapping *mapping,
                             const CUmemAccessDesc *access, size_t count);

#endif
