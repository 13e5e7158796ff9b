/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/block.h"

#include "loader/real.h"
#include "memory/staging.h"

static CUresult finish(CUresult result, CUstream stream)
{
    if (result != CUDA_SUCCESS)
        GS_REAL(cuStreamSynchronize)(stream);
    return result;
}

CUresult gs_piece_copy_out(const struct gs_piece *piece, CUdeviceptr address, CUstream stream)
{
    struct gs_host_extent extent;
    CUresult result = CUDA_SUCCESS;
    bool staged = false;
    for (unsigned next = 0; result == CUDA_SUCCESS && gs_host_next(piece->host, false, &next, &extent);) {
        staged = staged || !extent.page_locked;
        result = extent.page_locked
                     ? GS_REAL(cuMemcpyDtoHAsync_v2)(extent.address, address + extent.offset, extent.bytes, stream)
                     : gs_staging_to_host(extent.address, address + extent.offset, extent.bytes, stream, piece->host);
    }
    if (result == CUDA_SUCCESS && staged)
        result = gs_staging_flush(stream);
    return finish(result, stream);
}

CUresult gs_piece_copy_in(const struct gs_piece *piece, CUdeviceptr address, CUstream stream)
{
    struct gs_host_extent extent;
    CUresult result = CUDA_SUCCESS;
    for (unsigned next = 0; result == CUDA_SUCCESS && gs_host_next(piece->host, true, &next, &extent);)
        result = extent.address == NULL ? GS_REAL(cuMemsetD8Async)(address + extent.offset, 0, extent.bytes, stream)
                 : extent.page_locked
                     ? GS_REAL(cuMemcpyHtoDAsync_v2)(address + extent.offset, extent.address, extent.bytes, stream)
                     : gs_staging_to_device(address + extent.offset, extent.address, extent.bytes, stream, piece->host);
    return finish(result, stream);
}
