/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA kernel of the interposer that computes digests (../digest.h). It exists only as PTX, so the simulated driver
 * recognises the module by its first line, and runs the definition in C in its place.
 */
#ifndef SIM_DIGEST_KERNEL_H
#define SIM_DIGEST_KERNEL_H

#include "kernel_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpushare_digest_key;

bool sim_digest_is_image(const void *image);

extern const char sim_digest_name[];
extern const struct gpushare_sim_kernel sim_digest_code;

/* The variables of a module. NULL: out of memory. */
struct gpushare_digest_key *sim_digest_key_new(void);

/* Returns the variable of that name and its size, or NULL. */
void *sim_digest_variable(struct gpushare_digest_key *key, const char *name, size_t *size);

bool sim_digest_has(const struct gpushare_digest_key *key, const void *address);

/* How long a launch with these arguments (packed) takes at the memory's bandwidth, in nanoseconds. */
uint64_t sim_digest_duration(const void *arguments);

/* Runs that many blocks. */
void sim_digest_run(const struct gpushare_digest_key *key, const void *arguments, unsigned blocks);

#endif
