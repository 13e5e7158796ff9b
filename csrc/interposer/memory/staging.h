/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Copies between the GPU and host memory that is not page-locked.
 *
 * The driver copies such memory at a few GB/s. Page-locking it first takes as long as several copies. So threads of
 * ours copy it to or from a small ring that is page-locked, and the GPU copies the ring's slots. Measured on an NVIDIA
 * H100: 17 GB/s with 4 threads, 33 with 8, 44 with 16; page-locked memory was copied at 55 GB/s.
 *
 * The stream waits in order: values in page-locked memory tell it that a slot was filled, and tell the threads that the
 * GPU has finished with a slot. So nobody waits for a copy here, and the threads never call the driver.
 *
 * The ring and the threads exist only while they are used. Only the helper thread queues copies.
 */
#ifndef GPUSHARE_MEMORY_STAGING_H
#define GPUSHARE_MEMORY_STAGING_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Makes the ring, for about that many bytes to be copied, unless it exists. Needs a current context. False: the driver
 * cannot do this.
 */
bool gs_staging_begin(uint64_t bytes);

/* Whether there is a ring for copies in the current context, or in any. */
bool gs_staging_is_ready(void);
bool gs_staging_is_present(void);

/*
 * Queues a copy. The memory must stay until the work that the stream has then, or gs_staging_cancel, has ended.
 * `owner`: for gs_staging_cancel. If it fails, the stream has been synchronised.
 */
CUresult gs_staging_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, const void *owner);

/* The same; but the copies have not ended with the stream's work unless gs_staging_flush was called. */
CUresult gs_staging_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream, const void *owner);
CUresult gs_staging_flush(CUstream stream);

/* Afterwards the threads do not touch the owner's memory. Its copies on the GPU have ended, or its context failed. */
void gs_staging_cancel(const void *owner);

/* The context ends, or has failed. Its copies do not end by themselves any more. */
void gs_staging_context_ends(CUcontext context);

/* Waits for all copies, and frees the ring. */
void gs_staging_end(void);

void gs_staging_after_fork(void);

#endif
