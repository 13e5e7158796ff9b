/* SPDX-License-Identifier: BSD-3-Clause */
#include "steps.h"

#include "driver.h"
#include "mix.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>

static unsigned char *pattern;

void make_pattern(void)
{
    pattern = malloc(PATTERN);
    if (pattern == NULL)
        give_up("fuzz: out of host memory");
    uint64_t state = UINT64_C(88172645463325252);
    for (size_t i = 0; i < PATTERN; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pattern[i] = (unsigned char)state;
    }
}

static void model_set(unsigned char *at, unsigned long long value, unsigned width, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy(at + i * width, &value, width);
}

/* set SLOT STREAM ASYNC WIDTH OFFSET LENGTH VALUE */
static CUresult drive_set(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    if (block == NULL)
        return CUDA_ERROR_NOT_FOUND;
    unsigned long long offset = operation->n[4], length = operation->n[5], value = operation->n[6];
    unsigned width = (unsigned)operation->n[3];
    if (!clip(block, &offset, &length))
        return CUDA_ERROR_NOT_FOUND;
    offset -= offset % width;
    CUdeviceptr at = block->at + offset;
    size_t count = length / width;
    CUstream stream = thread->streams[operation->n[1]];
    if (count == 0)
        return CUDA_ERROR_NOT_FOUND;
    if (operation->n[2] != 0)
        return width == 1   ? driver_cuMemsetD8Async(at, (unsigned char)value, count, stream)
               : width == 2 ? driver_cuMemsetD16Async(at, (unsigned short)value, count, stream)
                            : driver_cuMemsetD32Async(at, (unsigned)value, count, stream);
    return width == 1   ? driver_cuMemsetD8(at, (unsigned char)value, count)
           : width == 2 ? driver_cuMemsetD16(at, (unsigned short)value, count)
                        : driver_cuMemsetD32(at, (unsigned)value, count);
}

static void model_set_step(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    unsigned long long offset = operation->n[4], length = operation->n[5];
    unsigned width = (unsigned)operation->n[3];
    clip(block, &offset, &length);
    offset -= offset % width;
    model_set(block->model + offset, operation->n[6], width, length / width);
    thread->bytes += length;
}

/* set2d SLOT STREAM ASYNC WIDTH HEIGHT VALUE */
static CUresult drive_set2d(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    if (block == NULL || block->pitch == 0)
        return CUDA_ERROR_NOT_FOUND;
    size_t width = operation->n[3] % block->pitch + 1, height = operation->n[4] % (block->size / block->pitch) + 1;
    unsigned char value = (unsigned char)operation->n[5];
    return operation->n[2] != 0 ? driver_cuMemsetD2D8Async(block->at, block->pitch, value, width, height,
                                                           thread->streams[operation->n[1]])
                                : driver_cuMemsetD2D8(block->at, block->pitch, value, width, height);
}

static void model_set2d(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    size_t width = operation->n[3] % block->pitch + 1, height = operation->n[4] % (block->size / block->pitch) + 1;
    for (size_t row = 0; row < height; row++)
        memset(block->model + row * block->pitch, (unsigned char)operation->n[5], width);
    thread->bytes += width * height;
}

static size_t pattern_offset(unsigned long long number, unsigned long long *length)
{
    size_t offset = number % (PATTERN / 2);
    if (*length > PATTERN - offset)
        *length = PATTERN - offset;
    return offset;
}

/* write SLOT STREAM ASYNC OFFSET LENGTH SOURCE: host to device */
static CUresult drive_write(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    unsigned long long offset = operation->n[3], length = operation->n[4];
    if (block == NULL || !clip(block, &offset, &length))
        return CUDA_ERROR_NOT_FOUND;
    const unsigned char *source = pattern + pattern_offset(operation->n[5], &length);
    return operation->n[2] != 0
               ? driver_cuMemcpyHtoDAsync(block->at + offset, source, length, thread->streams[operation->n[1]])
               : driver_cuMemcpyHtoD(block->at + offset, source, length);
}

static void model_write(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    unsigned long long offset = operation->n[3], length = operation->n[4];
    clip(block, &offset, &length);
    const unsigned char *source = pattern + pattern_offset(operation->n[5], &length);
    memcpy(block->model + offset, source, length);
    thread->bytes += length;
}

static bool clip_pair(const struct block *a, const struct block *b, unsigned long long *at_a, unsigned long long *at_b,
                      unsigned long long *length)
{
    return a != b && clip(a, at_a, length) && clip(b, at_b, length);
}

/* copy SLOT SLOT STREAM ASYNC OFFSET OFFSET LENGTH: from the second to the first */
static CUresult drive_copy(struct thread *thread, const struct operation *operation)
{
    int stream = (int)operation->n[2];
    struct block *a = use(thread, operation->n[0], stream), *b = a != NULL ? use(thread, operation->n[1], stream) : a;
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    if (a == NULL || b == NULL || !clip_pair(a, b, &at_a, &at_b, &length))
        return CUDA_ERROR_NOT_FOUND;
    return operation->n[3] != 0 ? driver_cuMemcpyDtoDAsync(a->at + at_a, b->at + at_b, length, thread->streams[stream])
                                : driver_cuMemcpyDtoD(a->at + at_a, b->at + at_b, length);
}

static void model_copy(struct thread *thread, const struct operation *operation)
{
    struct block *a = block_at(thread, operation->n[0]), *b = block_at(thread, operation->n[1]);
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    clip_pair(a, b, &at_a, &at_b, &length);
    memcpy(a->model + at_a, b->model + at_b, length);
    thread->bytes += length;
}

/* mix SLOT SLOT STREAM KEY OFFSET OFFSET LENGTH: launches the kernel */
static CUresult drive_mix(struct thread *thread, const struct operation *operation)
{
    int stream = (int)operation->n[2];
    struct block *a = use(thread, operation->n[0], stream), *b = a != NULL ? use(thread, operation->n[1], stream) : a;
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    if (a == NULL || b == NULL || !clip_pair(a, b, &at_a, &at_b, &length))
        return CUDA_ERROR_NOT_FOUND;
    CUdeviceptr first = a->at + at_a, second = b->at + at_b;
    unsigned key = (unsigned)operation->n[3];
    void *arguments[] = {&first, &second, &length, &key};
    return driver_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, thread->streams[stream], arguments, NULL);
}

static void model_mix(struct thread *thread, const struct operation *operation)
{
    struct block *a = block_at(thread, operation->n[0]), *b = block_at(thread, operation->n[1]);
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    clip_pair(a, b, &at_a, &at_b, &length);
    fuzz_mix(a->model + at_a, b->model + at_b, length, (unsigned)operation->n[3]);
    thread->bytes += 2 * length;
}

/*
 * Where `place` is in one of the block's units: memory is evicted and hashed by units, which start at multiples of
 * their size in the GPU's address space. A block without that place is touched anywhere.
 */
static unsigned long long place_in(const struct block *block, unsigned long long unit, unsigned long long place)
{
    unsigned long long first = (place % UNIT + UNIT - block->at % UNIT) % UNIT;
    if (first >= block->size)
        return place % block->size;
    return first + unit % ((block->size - first - 1) / UNIT + 1) * UNIT;
}

/* touch SLOT STREAM ASYNC UNIT PLACE LENGTH VALUE: changes one byte of a unit, or a few */
static CUresult drive_touch(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    if (block == NULL)
        return CUDA_ERROR_NOT_FOUND;
    unsigned long long offset = place_in(block, operation->n[3], operation->n[4]), length = operation->n[5];
    if (!clip(block, &offset, &length))
        return CUDA_ERROR_NOT_FOUND;
    unsigned char value = (unsigned char)operation->n[6];
    return operation->n[2] != 0
               ? driver_cuMemsetD8Async(block->at + offset, value, length, thread->streams[operation->n[1]])
               : driver_cuMemsetD8(block->at + offset, value, length);
}

static void model_touch(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    unsigned long long offset = place_in(block, operation->n[3], operation->n[4]), length = operation->n[5];
    clip(block, &offset, &length);
    unsigned char value = (unsigned char)operation->n[6];
    thread->touched += block->model[offset] != value;
    memset(block->model + offset, value, length);
    thread->bytes += length;
}

static const struct kind kinds[] = {
    {"set", drive_set, model_set_step, 1, 1, 2},  {"set2d", drive_set2d, model_set2d, 1, 1, 2},
    {"write", drive_write, model_write, 1, 1, 2}, {"copy", drive_copy, model_copy, 2, 2, 3},
    {"mix", drive_mix, model_mix, 2, 2, -1},      {"touch", drive_touch, model_touch, 1, 1, 2}};

const struct kind *kind_of(const struct operation *operation)
{
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(operation->name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}
