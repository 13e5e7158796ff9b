/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Digests of device memory (../digest.h), computed on the GPU by a CUDA kernel of the interposer.
 *
 * The kernel is loaded into a context when it is first needed, and runs in a stream of its own. Where it cannot run,
 * nothing is hashed. That is never an error for the program. All this goes directly to the driver, so the program's
 * hooks and memory figures do not contain it: its memory counts as the context's.
 *
 * Only the helper thread hashes, which leaves the program's captures alone, and only in a context that is in use by its
 * lane (lane.h): from before gs_hasher_begin until the job is over, the lane must be busy.
 */
#ifndef GPUSHARE_MEMORY_HASHER_H
#define GPUSHARE_MEMORY_HASHER_H

#include "digest.h"
#include "driver.h"

#include <stddef.h>

enum { GS_HASHER_MOST_UNITS = 64 };

struct gs_hasher_job;

/* Sets the key of later jobs. No job may be running. Without a key, nothing is hashed. */
void gs_hasher_set_seed(const uint8_t seed[GPUSHARE_DIGEST_SEED]);

/*
 * Starts to hash memory of up to GS_HASHER_MOST_UNITS units; the last unit may be shorter. No work of the program may
 * be running that writes there. Makes the context current. NULL: this memory cannot be hashed now.
 */
struct gs_hasher_job *gs_hasher_begin(CUcontext context, CUdeviceptr address, size_t bytes);

/*
 * CUDA_ERROR_NOT_READY while the job is running. Otherwise the job is over. If it has succeeded, there is a digest for
 * each unit.
 */
CUresult gs_hasher_poll(struct gs_hasher_job *job, struct gpushare_digest *digests);

/* Forgets the context, which is about to end, after the mover has left it. */
void gs_hasher_context_ends(CUcontext context);

void gs_hasher_after_fork(void);

#endif
