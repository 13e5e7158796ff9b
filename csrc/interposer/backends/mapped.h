/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What backends have in common that create memory and map it when a piece comes in, and copy it to the host, unmap and
 * release it when it goes out. A backend of this kind is a gs_mapped_backend whose `of_blocks` has these functions;
 * they find the rest by it.
 */
#ifndef GPUSHARE_BACKENDS_MAPPED_H
#define GPUSHARE_BACKENDS_MAPPED_H

#include "memory/block.h"

struct gs_mapped_backend {
    struct gs_backend of_blocks;

    /* Creates the piece's memory and maps it wherever it is to be seen. */
    CUresult (*acquire)(struct gs_block *block, unsigned i);

    /* The opposite. If the driver refuses, the memory is there as before. */
    CUresult (*withdraw)(struct gs_block *block, unsigned i);

    /* The same where nothing can be done about that. */
    void (*relinquish)(struct gs_block *block, unsigned i);

    /* An address through which a copy can read and write the whole piece, until the end of the copy. */
    CUresult (*begin_copy)(struct gs_block *block, unsigned i, CUdeviceptr *address);
    void (*end_copy)(struct gs_block *block, unsigned i);
};

CUresult gs_mapped_populate(struct gs_block *block, unsigned i, CUstream stream);
CUresult gs_mapped_start_out(struct gs_block *block, unsigned i, CUstream stream);
CUresult gs_mapped_finish_out(struct gs_block *block, unsigned i);
CUresult gs_mapped_discard(struct gs_block *block, unsigned i);
CUresult gs_mapped_start_in(struct gs_block *block, unsigned i, CUstream stream);
void gs_mapped_finish_in(struct gs_block *block, unsigned i);
void gs_mapped_abort_in(struct gs_block *block, unsigned i);
void gs_mapped_drop(struct gs_block *block, unsigned i);

/* The members of `of_blocks` that are the same for all of them. */
#define GS_MAPPED                                                                                                      \
    .needs_host = true, .populate = gs_mapped_populate, .start_out = gs_mapped_start_out,                              \
    .finish_out = gs_mapped_finish_out, .discard = gs_mapped_discard, .start_in = gs_mapped_start_in,                  \
    .finish_in = gs_mapped_finish_in, .abort_in = gs_mapped_abort_in, .drop = gs_mapped_drop

#endif
