/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The common part of backends that create and map memory when a piece is restored. When the piece is evicted, they copy
 * it to the host, unmap it and release it. Such a backend is a gs_mapped_backend. Its `of_blocks` has the functions
 * below, which find the other members through it.
 */
#ifndef GPUSHARE_BACKENDS_MAPPED_H
#define GPUSHARE_BACKENDS_MAPPED_H

#include "memory/block.h"

struct gs_mapped_backend {
    struct gs_backend of_blocks;

    /* Creates the piece's memory and maps it at all its addresses. */
    CUresult (*acquire)(struct gs_block *block, unsigned i);

    /* Unmaps and releases it. If the driver refuses, the memory stays as it was. */
    CUresult (*withdraw)(struct gs_block *block, unsigned i);

    /* Unmaps and releases it when a failure cannot be handled. */
    void (*relinquish)(struct gs_block *block, unsigned i);

    /* Returns an address through which a copy can access the whole piece, until the end of the copy. */
    CUresult (*begin_copy)(struct gs_block *block, unsigned i, CUdeviceptr *address);
    void (*end_copy)(struct gs_block *block, unsigned i);
};

CUresult gs_mapped_populate(struct gs_block *block, unsigned i, CUstream stream);
CUresult gs_mapped_show(struct gs_block *block, unsigned i, CUdeviceptr *address);
void gs_mapped_hide(struct gs_block *block, unsigned i);
CUresult gs_mapped_start_out(struct gs_block *block, unsigned i, CUstream stream);
CUresult gs_mapped_finish_out(struct gs_block *block, unsigned i);
CUresult gs_mapped_discard(struct gs_block *block, unsigned i);
CUresult gs_mapped_start_in(struct gs_block *block, unsigned i, CUstream stream);
void gs_mapped_finish_in(struct gs_block *block, unsigned i);
void gs_mapped_abort_in(struct gs_block *block, unsigned i);
void gs_mapped_drop(struct gs_block *block, unsigned i);

/* The members of `of_blocks` that these backends have in common. */
#define GS_MAPPED                                                                                                      \
    .needs_host = true, .populate = gs_mapped_populate, .show = gs_mapped_show, .hide = gs_mapped_hide,                \
    .start_out = gs_mapped_start_out, .finish_out = gs_mapped_finish_out, .discard = gs_mapped_discard,                \
    .start_in = gs_mapped_start_in, .finish_in = gs_mapped_finish_in, .abort_in = gs_mapped_abort_in,                  \
    .drop = gs_mapped_drop

#endif
