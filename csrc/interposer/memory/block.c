/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/block.h"

#include "loader/real.h"

CUresult gs_piece_copy(const struct gs_piece *piece, CUdeviceptr address, bool outward, CUstream stream)
{
    const struct gs_host_extent *extents;
    unsigned count = gs_host_extents(piece->host, &extents);
    CUresult result = CUDA_SUCCESS;
    for (unsigned e = 0; e < count && result == CUDA_SUCCESS; e++) {
        result = outward ? GS_REAL(cuMemcpyDtoHAsync_v2)(extents[e].address, address, extents[e].bytes, stream)
                         : GS_REAL(cuMemcpyHtoDAsync_v2)(address, extents[e].address, extents[e].bytes, stream);
        address += extents[e].bytes;
    }
    if (result != CUDA_SUCCESS)
        GS_REAL(cuStreamSynchronize)(stream);
    return result;
}
