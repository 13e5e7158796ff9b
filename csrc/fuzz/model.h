/* SPDX-License-Identifier: BSD-3-Clause */
/* The model: a host copy of every block, and the comparison of device memory with it. */
#ifndef FUZZ_MODEL_H
#define FUZZ_MODEL_H

#include "thread.h"

/* Returns true if the operation took effect. */
bool took_effect(struct thread *thread, CUresult result);

void compare(struct thread *thread, const unsigned char *found, const unsigned char *expected, size_t size,
             unsigned line);

/* Waits for all reads and compares their results. */
void compare_reads(struct thread *thread);

/* NULL: there is no block. */
struct block *block_at(struct thread *thread, unsigned long long slot);

/* Makes the next work in `stream` wait for all earlier work on the block. */
void order(struct thread *thread, struct block *block, int stream);

/* Returns the block, ordered and with known bytes. NULL if there is none, or a call was refused. */
struct block *use(struct thread *thread, unsigned long long slot, int stream);

/* The block no longer exists. */
void forget(struct block *block);

/* Limits offset and length to the block. False if nothing is left. */
bool clip(const struct block *block, unsigned long long *offset, unsigned long long *length);

#endif
