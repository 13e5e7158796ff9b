/* SPDX-License-Identifier: BSD-3-Clause */
/* Captures of streams into graphs. */
#ifndef SIM_GRAPH_CAPTURE_H
#define SIM_GRAPH_CAPTURE_H

#include "stream.h"

/* An allocation or free in a stream that is being captured becomes a node. */
CUresult sim_capture_allocate(struct sim_stream *stream, size_t size, const CUmemPoolProps *properties,
                              unsigned accessible, CUdeviceptr *address);
CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address);

#endif
