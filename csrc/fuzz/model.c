/* SPDX-License-Identifier: BSD-3-Clause */
#include "model.h"

#include "driver.h"
#include "injection.h"

#include <stdlib.h>
#include <string.h>

/* Returns true if the operation took effect. */
bool took_effect(struct thread *thread, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY && result != CUDA_ERROR_OPERATING_SYSTEM && !injected_lately())
        wrong(thread, "%s: CUDA error %d", thread->current != NULL ? thread->current->name : "the end", (int)result);
    thread->refused++;
    return false;
}

void compare(struct thread *thread, const unsigned char *found, const unsigned char *expected, size_t size,
             unsigned line)
{
    thread->compared += size;
    if (memcmp(found, expected, size) == 0)
        return;
    size_t first = 0, different = 0;
    for (size_t i = size; i-- > 0;)
        if (found[i] != expected[i]) {
            first = i;
            different++;
        }
    wrong(thread, "bytes read by line %u: %zu of %zu differ, first at %zu: %02x instead of %02x", line, different, size,
          first, found[first], expected[first]);
}

/* Does not synchronise the context, because that would end another thread's capture. */
static bool wait_for_all(struct thread *thread)
{
    bool complete = true;
    for (unsigned i = 0; i < STREAMS; i++) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        /* If the wait was refused, it does not show whether the work is done, so it waits again. */
        for (unsigned tries = 0; result != CUDA_SUCCESS && tries < 1000; tries++)
            result = driver_cuStreamSynchronize(thread->streams[i]);
        complete = complete && result == CUDA_SUCCESS;
    }
    return complete;
}

void compare_reads(struct thread *thread)
{
    bool complete = thread->read_count == 0 || wait_for_all(thread);
    if (!complete)
        wrong(thread, "synchronising the streams failed");
    for (unsigned i = 0; i < thread->read_count; i++) {
        struct read *read = &thread->reads[i];
        if (complete)
            compare(thread, read->found, read->expected, read->size, read->line);
        free(read->found);
        free(read->expected);
    }
    thread->read_count = 0;
}

struct block *block_at(struct thread *thread, unsigned long long slot)
{
    struct block *block = &thread->blocks[slot % SLOTS];
    return block->at != 0 ? block : NULL;
}

/* Makes the next work in `stream` wait for all earlier work on the block. */
void order(struct thread *thread, struct block *block, int stream)
{
    if (block->last != stream && block->last >= 0) {
        CUresult result = driver_cuEventRecord(thread->event, thread->streams[block->last]);
        if (result == CUDA_SUCCESS)
            result = driver_cuStreamWaitEvent(thread->streams[stream], thread->event, 0);
        /* If the wait is cancelled, waits for the GPU instead. */
        if (result != CUDA_SUCCESS && !wait_for_all(thread))
            wrong(thread, "cannot order work: CUDA error %d", (int)result);
    }
    block->last = stream;
}

/* Fills new memory with known bytes before a part of it is used. */
static bool define(struct thread *thread, struct block *block, int stream)
{
    if (block->defined)
        return true;
    if (thread->capturing != NULL ||
        !took_effect(thread, driver_cuMemsetD8Async(block->at, 0x5a, block->size, thread->streams[stream])))
        return false;
    memset(block->model, 0x5a, block->size);
    block->defined = true;
    return true;
}

struct block *use(struct thread *thread, unsigned long long slot, int stream)
{
    struct block *block = block_at(thread, slot);
    if (block == NULL)
        return NULL;
    if (thread->capturing == NULL)
        order(thread, block, stream);
    return define(thread, block, stream) ? block : NULL;
}

void forget(struct block *block)
{
    free(block->model);
    *block = (struct block){.generation = block->generation + 1, .last = -1};
}

/* Limits offset and length to the block. False if nothing is left. */
bool clip(const struct block *block, unsigned long long *offset, unsigned long long *length)
{
    *offset %= block->size;
    if (*length > block->size - *offset)
        *length = block->size - *offset;
    return *length != 0;
}
