/* SPDX-License-Identifier: BSD-3-Clause */
/* The model: a host copy of every block, and what of the device is compared with it. */
#ifndef FUZZ_MODEL_H
#define FUZZ_MODEL_H

#include "thread.h"

/* True if the operation took effect. */
bool took_effect(struct thread *thread, CUresult result);

void compare(struct thread *thread, const unsigned char *found, const unsigned char *expected, size_t size,
             unsigned line);

/* Waits for all reads, and compares what they found. */
void compare_reads(struct thread *thread);

/* NULL: there is none. */
struct block *block_at(struct thread *thread, unsigned long long slot);

/* What `stream` does next happens after all that was done to the block. */
void order(struct thread *thread, struct block *block, int stream);

/* The block, ordered and with known bytes; NULL if there is none, or it was refused. */
struct block *use(struct thread *thread, unsigned long long slot, int stream);

/* It is no more. */
void forget(struct block *block);

/* Keeps offset and length inside of the block. False if nothing is left. */
bool clip(const struct block *block, unsigned long long *offset, unsigned long long *length);

#endif
