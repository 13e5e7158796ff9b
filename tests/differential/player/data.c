/* SPDX-License-Identifier: BSD-3-Clause */
/* Fills, copies, kernels and reads. */
#include "mailbox.h"
#include "player.h"

#include <stdlib.h>
#include <string.h>

static bool is_device_memory(const struct block *block)
{
    return block->kind != HOST;
}

static unsigned device_of(const struct self *self, unsigned context)
{
    return self->space->contexts[context]->device;
}

static void has_written(struct self *self, struct block *block, unsigned slot, size_t offset, size_t length)
{
    if (slot == STREAMS && real)
        used_by(self, block, 0);
    if (slot < STREAMS && is_capturing(self, slot)) {
        graph_uses(self, &self->space->graphs[self->space->capture.graph], block);
        return;
    }
    if (offset <= block->defined && offset + length > block->defined)
        block->defined = offset + length;
}

static size_t clip(unsigned long long *offset, unsigned long long length, size_t size)
{
    *offset = size == 0 ? 0 : *offset % size;
    size_t rest = size - *offset;
    return length < rest ? length : rest;
}

/* Where a write begins in a block, so that no gap remains before it. */
static unsigned long long place(const struct block *block, unsigned long long offset, bool captured)
{
    size_t limit = captured ? block->defined : block->defined < block->size ? block->defined + 1 : block->size;
    return limit == 0 ? 0 : offset % limit;
}

/* The block of the slot, or the next one that has bytes; not `other`. */
static struct block *written_block(struct self *self, unsigned long long slot, const struct block *other)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &self->space->blocks[(slot + i) % BLOCKS];
        if (block != other && block->kind != EMPTY && block->defined != 0 &&
            (block->kind != MAPPED || block->has_access))
            return block;
    }
    return NULL;
}

/* set BLOCK STREAM WIDTH OFFSET LENGTH VALUE */
static void op_set(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS), width = 1u << n[2] % 3;
    if (block == NULL || stream == NULL || !is_device_memory(block))
        return;
    bool captured = is_capturing(self, slot);
    unsigned long long offset = place(block, n[3], captured) / width * width;
    size_t length = clip(&offset, n[4], captured ? block->defined : block->size) / width;
    if (length == 0 || !order(self, block, slot))
        return;
    CUdeviceptr at = block->at + offset;
    CUresult result = width == 1   ? CALL(self, cuMemsetD8Async, at, (unsigned char)n[5], length, stream->handle)
                      : width == 2 ? CALL(self, cuMemsetD16Async, at, (unsigned short)n[5], length, stream->handle)
                                   : CALL(self, cuMemsetD32Async, at, (unsigned)n[5], length, stream->handle);
    if (result == CUDA_SUCCESS)
        has_written(self, block, slot, offset, length * width);
}

/* setvalue BLOCK STREAM STREAM OFFSET VALUE: the second stream goes on once the first has written */
static void op_setvalue(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    struct stream *writes = open_stream(self, n[1]), *waits = open_stream(self, n[2]);
    unsigned slot = (unsigned)(n[1] % STREAMS), other = (unsigned)(n[2] % STREAMS);
    /* The driver refuses this for stream-ordered memory, the interposer does not. */
    if (block == NULL || writes == NULL || waits == NULL || !is_device_memory(block) || is_pool_memory(block) ||
        is_capturing(self, slot) || is_capturing(self, other) || slot < FIRST_OWN || other < FIRST_OWN ||
        block->size < sizeof(unsigned))
        return;
    unsigned long long offset = n[3] % (block->size - sizeof(unsigned) + 1) / sizeof(unsigned) * sizeof(unsigned);
    if (!order(self, block, slot))
        return;
    CUdeviceptr at = block->at + offset;
    if (CALL(self, cuStreamWriteValue32, writes->handle, at, (unsigned)n[4], CU_STREAM_WRITE_VALUE_DEFAULT) !=
        CUDA_SUCCESS)
        return;
    has_written(self, block, slot, offset, sizeof(unsigned));
    if (order(self, block, other))
        CALL(self, cuStreamWaitValue32, waits->handle, at, (unsigned)n[4], CU_STREAM_WAIT_VALUE_EQ);
}

/* setnow BLOCK OFFSET LENGTH VALUE */
static void op_setnow(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    if (block == NULL || !is_device_memory(block) || !settle_block(self, block))
        return;
    unsigned long long offset = place(block, n[1], false);
    size_t length = clip(&offset, n[2], block->size);
    if (length != 0 && CALL(self, cuMemsetD8, block->at + offset, (unsigned char)n[3], length) == CUDA_SUCCESS) {
        has_written(self, block, STREAMS, offset, length);
        used_by(self, block, 0);
    }
}

/* write BLOCK STREAM OFFSET LENGTH SEED: from memory that is not page-locked */
static void op_write(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (block == NULL || stream == NULL || !is_device_memory(block))
        return;
    bool captured = is_capturing(self, slot);
    unsigned long long offset = place(block, n[2], captured);
    size_t length = clip(&offset, n[3], captured ? block->defined : block->size);
    if (length == 0 || !order(self, block, slot))
        return;
    if (CALL(self, cuMemcpyHtoDAsync, block->at + offset, pattern + n[4] % 4096, length, stream->handle) ==
        CUDA_SUCCESS)
        has_written(self, block, slot, offset, length);
}

/* writenow BLOCK OFFSET LENGTH SEED */
static void op_writenow(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    if (block == NULL || !settle_block(self, block))
        return;
    unsigned long long offset = place(block, n[1], false);
    size_t length = clip(&offset, n[2], block->size);
    if (length == 0)
        return;
    const unsigned char *source = pattern + n[3] % 4096;
    CUresult result = n[4] % 3 == 0 ? CALL(self, cuMemcpy, block->at + offset, (CUdeviceptr)(uintptr_t)source, length)
                                    : CALL(self, cuMemcpyHtoD, block->at + offset, source, length);
    if (result == CUDA_SUCCESS)
        has_written(self, block, STREAMS, offset, length);
}

/* read BLOCK OFFSET LENGTH */
static void op_read(struct self *self, const unsigned long long *n)
{
    struct block *block = written_block(self, n[0], NULL);
    if (block == NULL || !settle_block(self, block))
        return;
    unsigned long long offset = n[1];
    size_t length = clip(&offset, n[2], block->defined);
    unsigned char *bytes = malloc(length + 1);
    if (CALL(self, cuMemcpyDtoH, bytes, block->at + offset, length) == CUDA_SUCCESS)
        note(self, " bytes=%016llx", (unsigned long long)hash(bytes, length));
    free(bytes);
}

/* readlater BLOCK STREAM OFFSET LENGTH: its bytes are looked at in the end */
static void op_readlater(struct self *self, const unsigned long long *n)
{
    struct block *block = written_block(self, n[0], NULL);
    struct stream *stream = open_stream(self, n[1]);
    struct space *space = self->space;
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (block == NULL || stream == NULL || space->later_count == LATER)
        return;
    unsigned long long offset = n[2];
    size_t length = clip(&offset, n[3] % 65536, block->defined);
    if (length == 0 || !order(self, block, slot))
        return;
    unsigned char *bytes = calloc(1, length);
    if (CALL(self, cuMemcpyDtoHAsync, bytes, block->at + offset, length, stream->handle) == CUDA_SUCCESS) {
        space->later[space->later_count++] = (struct later){self->line->number, bytes, length};
        has_written(self, block, slot, 0, 0);
    }
}

static bool can_reach(const struct self *self, unsigned context, const struct block *block)
{
    return !is_device_memory(block) || device_of(self, context) == device_of(self, block->context);
}

/* copy TO FROM STREAM TO_OFFSET FROM_OFFSET LENGTH HOW */
static void op_copy(struct self *self, const unsigned long long *n)
{
    struct block *to = reachable_block(self, n[0]), *from = written_block(self, n[1], to);
    struct stream *stream = open_stream(self, n[2]);
    unsigned slot = (unsigned)(n[2] % STREAMS);
    if (to == NULL || from == NULL || stream == NULL)
        return;
    bool captured = is_capturing(self, slot);
    unsigned long long target = place(to, n[3], captured), source = n[4];
    size_t length = clip(&source, n[5], from->defined);
    length = clip(&target, length, captured ? to->defined : to->size);
    if (length == 0 || !order(self, from, slot) || !order(self, to, slot))
        return;
    CUresult result;
    if (n[6] % 4 == 0 && !captured && is_device_memory(to) && is_device_memory(from)) {
        result = CALL(self, cuMemcpyPeerAsync, to->at + target, self->space->contexts[to->context]->handle,
                      from->at + source, self->space->contexts[from->context]->handle, length, stream->handle);
    } else {
        result = CALL(self, cuMemcpyDtoDAsync, to->at + target, from->at + source, length, stream->handle);
    }
    if (result != CUDA_SUCCESS)
        return;
    has_written(self, from, slot, 0, 0);
    has_written(self, to, slot, target, length);
}

/* copynow TO FROM TO_OFFSET FROM_OFFSET LENGTH */
static void op_copynow(struct self *self, const unsigned long long *n)
{
    struct block *to = reachable_block(self, n[0]), *from = written_block(self, n[1], to);
    if (to == NULL || from == NULL || !settle_block(self, from) || !settle_block(self, to))
        return;
    unsigned long long target = place(to, n[2], false), source = n[3];
    size_t length = clip(&source, n[4], from->defined);
    length = clip(&target, length, to->size);
    if (length != 0 && CALL(self, cuMemcpyDtoD, to->at + target, from->at + source, length) == CUDA_SUCCESS) {
        has_written(self, to, STREAMS, target, length);
        used_by(self, to, 0);
        used_by(self, from, 0);
    }
}

/* copyrows BLOCK WIDTH HEIGHT SEED: host memory into every second row */
static void op_copyrows(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    size_t width = n[1] % 512 + 1, height = n[2] % 32 + 1;
    if (block == NULL || !is_device_memory(block) || block->defined < 2 * width * height || !settle_block(self, block))
        return;
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = pattern + n[3] % 4096,
                                .srcPitch = width,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = block->at,
                                .dstPitch = 2 * width,
                                .WidthInBytes = width,
                                .Height = height};
    if (CALL(self, cuMemcpy2D, &copy) == CUDA_SUCCESS)
        has_written(self, block, STREAMS, 0, 0);
}

/* The simulated driver runs a kernel once, whatever the number of its threads. */
static CUresult launch(struct self *self, CUfunction function, unsigned threads, CUstream stream, void **arguments)
{
    return CALL(self, cuLaunchKernel, function, 1, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

static uint64_t duration; /* nanoseconds that each kernel takes */

/* mix BLOCK BLOCK STREAM LENGTH KEY */
static void op_mix(struct self *self, const unsigned long long *n)
{
    struct block *a = written_block(self, n[0], NULL), *b = written_block(self, n[1], a);
    struct stream *stream = open_stream(self, n[2]);
    unsigned slot = (unsigned)(n[2] % STREAMS);
    if (a == NULL || b == NULL || stream == NULL)
        return;
    unsigned context = context_of(self, slot);
    size_t count = a->defined < b->defined ? a->defined : b->defined;
    unsigned key = (unsigned)n[4];
    if (count > n[3])
        count = n[3];
    if (count == 0 || !can_reach(self, context, a) || !can_reach(self, context, b) || !order(self, a, slot) ||
        !order(self, b, slot))
        return;
    uint64_t nanoseconds = __atomic_load_n(&duration, __ATOMIC_RELAXED);
    void *arguments[] = {&a->at, &b->at, &count, &key, &nanoseconds};
    if (launch(self, self->space->contexts[context]->mix, 256, stream->handle, arguments) == CUDA_SUCCESS) {
        has_written(self, a, slot, 0, 0);
        has_written(self, b, slot, 0, 0);
    }
}

/*
 * mailbox BLOCK SIZE STREAM KIND KEY: a kernel runs already when the memory is allocated that it is told to write to.
 * Nothing else is submitted.
 */
static void op_mailbox(struct self *self, const unsigned long long *n)
{
    struct block *block = &self->space->blocks[n[0] % BLOCKS];
    struct stream *stream = open_stream(self, n[2]);
    struct mailbox *mailbox = NULL;
    if (block->kind != EMPTY || stream == NULL || n[2] % STREAMS < FIRST_OWN || self->space->capture.open ||
        (unsigned)self->current != stream->context)
        return;
    if (CALL(self, cuMemHostAlloc, (void **)&mailbox, sizeof *mailbox, 0) != CUDA_SUCCESS)
        return;
    memset(mailbox, 0, sizeof *mailbox);
    void *arguments[] = {&mailbox};
    bool launched =
        launch(self, self->space->contexts[stream->context]->post, 1, stream->handle, arguments) == CUDA_SUCCESS;
    CUdeviceptr at = 0;
    size_t size = n[1] % LARGEST + 1;
    CUresult result =
        n[3] % 3 == 0 ? CALL(self, cuMemAllocAsync, &at, size, stream->handle) : CALL(self, cuMemAlloc, &at, size);
    if (result == CUDA_SUCCESS) {
        self->space->allocated[stream->context] = true;
        *block = (struct block){.kind = n[3] % 3 == 0 ? ASYNC : PLAIN,
                                .at = at,
                                .size = size,
                                .context = stream->context,
                                .generation = block->generation + 1,
                                .last = NOTHING_PENDING,
                                .captured_by = NOTHING_PENDING};
        mailbox->at = (unsigned char *)(uintptr_t)at;
        mailbox->count = size < 65536 ? size : 65536;
        mailbox->key = n[4];
    }
    __atomic_store_n(&mailbox->ready, 1, __ATOMIC_RELEASE);
    if (CALL(self, cuStreamSynchronize, stream->handle) == CUDA_SUCCESS && launched && block->kind != EMPTY)
        block->defined = mailbox->count;
    CALL(self, cuMemFreeHost, mailbox);
}

/* slow NANOSECONDS: so long take the kernels that are launched from now on */
static void op_slow(struct self *self, const unsigned long long *n)
{
    (void)self;
    __atomic_store_n(&duration, n[0] % 5000000, __ATOMIC_RELAXED);
}

const struct operation data_operations[] = {{"set", op_set, 0},
                                            {"setvalue", op_setvalue, 0},
                                            {"setnow", op_setnow, WAITS},
                                            {"write", op_write, WAITS},
                                            {"writenow", op_writenow, WAITS},
                                            {"read", op_read, WAITS},
                                            {"readlater", op_readlater, WAITS},
                                            {"copy", op_copy, 0},
                                            {"copynow", op_copynow, WAITS},
                                            {"copyrows", op_copyrows, WAITS},
                                            {"mix", op_mix, 0},
                                            {"mailbox", op_mailbox, WAITS},
                                            {"slow", op_slow, 0},
                                            {0}};
