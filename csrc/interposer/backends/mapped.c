/* SPDX-License-Identifier: BSD-3-Clause */
#include "backends/mapped.h"

static const struct gs_mapped_backend *backend_of(const struct gs_block *block)
{
    return (const struct gs_mapped_backend *)block->backend;
}

CUresult gs_mapped_populate(struct gs_block *block, unsigned i, CUstream stream)
{
    (void)stream;
    CUresult result = backend_of(block)->acquire(block, i);
    if (result == CUDA_SUCCESS)
        block->pieces[i].state = GS_PIECE_RESIDENT;
    return result;
}

CUresult gs_mapped_show(struct gs_block *block, unsigned i, CUdeviceptr *address)
{
    return backend_of(block)->begin_copy(block, i, address);
}

void gs_mapped_hide(struct gs_block *block, unsigned i)
{
    backend_of(block)->end_copy(block, i);
}

CUresult gs_mapped_start_out(struct gs_block *block, unsigned i, CUstream stream)
{
    CUdeviceptr address;
    CUresult result = backend_of(block)->begin_copy(block, i, &address);
    if (result != CUDA_SUCCESS)
        return result;
    result = gs_piece_copy_out(&block->pieces[i], address, stream);
    if (result != CUDA_SUCCESS)
        backend_of(block)->end_copy(block, i);
    return result;
}

static CUresult withdraw(struct gs_block *block, unsigned i, enum gs_piece_state state)
{
    CUresult result = backend_of(block)->withdraw(block, i);
    if (result == CUDA_SUCCESS)
        block->pieces[i].state = state;
    return result;
}

CUresult gs_mapped_finish_out(struct gs_block *block, unsigned i)
{
    backend_of(block)->end_copy(block, i);
    return withdraw(block, i, GS_PIECE_SWAPPED);
}

CUresult gs_mapped_discard(struct gs_block *block, unsigned i)
{
    return withdraw(block, i, GS_PIECE_EMPTY);
}

CUresult gs_mapped_start_in(struct gs_block *block, unsigned i, CUstream stream)
{
    CUdeviceptr address;
    CUresult result = backend_of(block)->acquire(block, i);
    if (result != CUDA_SUCCESS)
        return result;
    result = backend_of(block)->begin_copy(block, i, &address);
    if (result == CUDA_SUCCESS)
        result = gs_piece_copy_in(&block->pieces[i], address, stream);
    if (result != CUDA_SUCCESS)
        gs_mapped_abort_in(block, i);
    return result;
}

void gs_mapped_finish_in(struct gs_block *block, unsigned i)
{
    backend_of(block)->end_copy(block, i);
    block->pieces[i].state = GS_PIECE_RESIDENT;
}

void gs_mapped_abort_in(struct gs_block *block, unsigned i)
{
    backend_of(block)->end_copy(block, i);
    backend_of(block)->relinquish(block, i);
}

void gs_mapped_drop(struct gs_block *block, unsigned i)
{
    if (block->pieces[i].handle != 0) /* also memory that the driver refused to unmap in a context that has failed */
        backend_of(block)->relinquish(block, i);
    block->pieces[i].state = GS_PIECE_EMPTY;
}
