/* SPDX-License-Identifier: BSD-3-Clause */
#include "launch.h"

#include "base/clock.h"
#include "context.h"
#include "contexts.h"
#include "counters.h"
#include "digest_kernel.h"
#include "fault.h"
#include "managed.h"
#include "peer.h"
#include "segment/engines.h"

#include <alloca.h>
#include <string.h>

/* How many words of the arguments are checked for pointers to managed memory and to other devices' memory. */
#define MAX_POINTERS 128
/* Long kernels of several processes alternate after this many nanoseconds. */
#define SLICE UINT64_C(2000000)
/* How long a digest waits for its turn (ns). */
#define DIGEST_PATIENCE (4 * SLICE)

/* UINT64_MAX: the configured duration. */
static uint64_t chosen_duration = UINT64_MAX;

void gpushare_sim_duration(uint64_t nanoseconds)
{
    __atomic_store_n(&chosen_duration, nanoseconds, __ATOMIC_RELAXED);
}

static void run_kernel(void *argument)
{
    struct sim_launch *launch = argument;
    const struct gpushare_sim_kernel *code = launch->kernel->code;
    void **arguments = alloca((code->argument_count + 1) * sizeof *arguments);
    for (unsigned i = 0; i < code->argument_count; i++)
        arguments[i] = launch->arguments + code->argument_offsets[i];
    code->launch(arguments, launch->grid, launch->block, launch->shared);
}

/* False if an argument points to memory of another device that the kernel may not access. */
static bool touch(const struct sim_context *context, const struct sim_launch *launch)
{
    uint64_t words[MAX_POINTERS];
    size_t count = launch->kernel->arguments_size / sizeof(uint64_t);
    if (count > MAX_POINTERS)
        count = MAX_POINTERS;
    memcpy(words, launch->arguments, count * sizeof(uint64_t));
    sim_managed_touch(context->device, words, count);
    return sim_peer_allows(context, words, count);
}

static void sum_up(void *argument)
{
    struct sim_launch *launch = argument;
    sim_digest_run(launch->kernel->digest, launch->arguments, launch->grid[0]);
}

/*
 * A GPU interrupts a kernel at the end of its time slice. Here a kernel may run on, until it gets memory for which
 * another process has to compute digests. So a digest does not wait for its end.
 */
static CUresult run_digest(struct sim_context *context, struct sim_launch *launch)
{
    uint64_t rest = launch->duration, begin;
    bool first = true;
    CUresult result = CUDA_SUCCESS;
    do {
        bool alone = sim_segment_compute_try_begin(context->device, DIGEST_PATIENCE, &begin);
        begin = alone ? begin : sim_now();
        if (first)
            result = touch(context, launch) ? sim_fault_guard(sum_up, launch) : CUDA_ERROR_ILLEGAL_ADDRESS;
        first = false;
        sim_sleep_until(begin + (rest < SLICE ? rest : SLICE));
        uint64_t ran = alone ? sim_segment_compute_end(context->device, begin) : sim_now() - begin;
        rest -= ran < rest ? ran : rest;
    } while (rest != 0);
    return result;
}

static CUresult run_launch(struct sim_context *context, struct sim_op *op)
{
    struct sim_launch *launch = (struct sim_launch *)op->payload;
    if (launch->kernel->digest != NULL)
        return run_digest(context, launch);
    uint64_t rest = launch->duration, begin = sim_segment_compute_begin(context->device);
    CUresult result = touch(context, launch) ? sim_fault_guard(run_kernel, launch) : CUDA_ERROR_ILLEGAL_ADDRESS;
    for (;;) {
        sim_sleep_until(begin + (rest < SLICE ? rest : SLICE));
        uint64_t ran = sim_segment_compute_end(context->device, begin);
        __atomic_add_fetch(&sim_counters_now.kernel_ns, ran, __ATOMIC_RELAXED);
        if (ran >= rest)
            break;
        rest -= ran;
        begin = sim_segment_compute_begin(context->device);
    }
    __atomic_add_fetch(&sim_counters_now.kernels, 1, __ATOMIC_RELAXED);
    return result;
}

static CUresult pack(struct sim_launch *launch, void **parameters, void **extra)
{
    const struct gpushare_sim_kernel *code = launch->kernel->code;
    if (parameters != NULL) {
        for (unsigned i = 0; i < code->argument_count; i++) {
            SIM_REQUIRE(parameters[i] != NULL);
            memcpy(launch->arguments + code->argument_offsets[i], parameters[i], code->argument_sizes[i]);
        }
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t size = 0;
    for (void **item = extra; item != NULL && *item != CU_LAUNCH_PARAM_END; item += 2) {
        if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = item[1];
        else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(size_t *)item[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_REQUIRE(size >= launch->kernel->arguments_size && (buffer != NULL || size == 0));
    if (size > 0)
        memcpy(launch->arguments, buffer, launch->kernel->arguments_size);
    return CUDA_SUCCESS;
}

CUresult sim_op_launch(struct sim_op **op, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, void **parameters, void **extra)
{
    for (unsigned i = 0; i < 3; i++)
        SIM_REQUIRE(grid[i] > 0 && block[i] > 0 && block[i] <= 1024);
    SIM_REQUIRE((uint64_t)block[0] * block[1] * block[2] <= 1024 && grid[0] <= INT32_MAX && grid[1] <= 65535 &&
                grid[2] <= 65535 && shared <= (unsigned)kernel->dynamic_shared_limit);
    SIM_REQUIRE(parameters == NULL || extra == NULL);
    *op = sim_op_new(SIM_OP_KERNEL, sizeof(struct sim_launch) + kernel->arguments_size, run_launch);
    if (*op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_launch *launch = (struct sim_launch *)(*op)->payload;
    launch->kernel = kernel;
    memcpy(launch->grid, grid, sizeof launch->grid);
    memcpy(launch->block, block, sizeof launch->block);
    launch->shared = shared;
    uint64_t chosen = __atomic_load_n(&chosen_duration, __ATOMIC_RELAXED);
    launch->duration = chosen != UINT64_MAX ? chosen : sim_config.kernel_ns;
    CUresult result = pack(launch, parameters, extra);
    if (result != CUDA_SUCCESS)
        sim_op_release(*op);
    else if (kernel->digest != NULL)
        launch->duration = sim_digest_duration(launch->arguments);
    return result;
}

void sim_op_launch_parameters(struct sim_op *op, void **pointers, CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct sim_launch *launch = (struct sim_launch *)op->payload;
    const struct gpushare_sim_kernel *code = launch->kernel->code;
    for (unsigned i = 0; i < code->argument_count; i++)
        pointers[i] = launch->arguments + code->argument_offsets[i];
    *parameters = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)launch->kernel,
                                            .gridDimX = launch->grid[0],
                                            .gridDimY = launch->grid[1],
                                            .gridDimZ = launch->grid[2],
                                            .blockDimX = launch->block[0],
                                            .blockDimY = launch->block[1],
                                            .blockDimZ = launch->block[2],
                                            .sharedMemBytes = launch->shared,
                                            .kernelParams = pointers};
}

static inline CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void **parameters,
                              void **extra, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_kernel *kernel;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(sim_context_grow(stream->context));
    if (sim_config.instant)
        return CUDA_SUCCESS;
    SIM_TRY(sim_kernel_find(function, &kernel));
    SIM_TRY(sim_kernel_load(kernel));
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    struct sim_op *op;
    SIM_TRY(sim_op_launch(&op, kernel, grid, block, shared, parameters, extra));
    return sim_stream_submit(stream, op, NULL);
}

SIM_PAIR(cuLaunchKernel, _ptsz,
         (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
          CUstream stream, void **parameters, void **extra),
         launch(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra, meant))
SIM_PAIR(cuLaunchCooperativeKernel, _ptsz,
         (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
          CUstream stream, void **parameters),
         launch(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL, meant))

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra,
                          enum sim_stream_default meant)
{
    SIM_REQUIRE(c != NULL && (c->numAttrs == 0 || c->attrs != NULL));
    return launch(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                  c->sharedMemBytes, c->hStream, parameters, extra, meant);
}

SIM_PAIR(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
         launch_ex(config, f, parameters, extra, meant))
