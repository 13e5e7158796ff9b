/* SPDX-License-Identifier: BSD-3-Clause */
/* The begin and end of the driver and of each context. Calls the functions of all other modules for these occasions. */
#include "capture.h"
#include "checkpoint.h"
#include "context.h"
#include "contexts.h"
#include "fault.h"
#include "gate.h"
#include "graph.h"
#include "graph_memory.h"
#include "inject.h"
#include "managed.h"
#include "memory.h"
#include "pool.h"
#include "ports.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/memory.h"
#include "segment/segment.h"
#include "stream.h"
#include "visible.h"

#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 64

/*
 * The contexts below the current one. Allocated with the first push, because static TLS is scarce in a library that is
 * loaded late.
 */
static __thread struct sim_context **below;
static __thread unsigned below_count;

static struct sim_context *primary[SIM_MAX_DEVICES];
static unsigned primary_flags[SIM_MAX_DEVICES];
static unsigned long long next_context_id = 1;

/* The functions that lower modules call here. */
static const struct sim_ports ports = {
    .settle = sim_pool_settle,
    .take_back = sim_pool_take_back,
    .forget_managed = sim_managed_forget,
    .record = sim_graph_append_last,
    .discard = sim_graph_free,
};

static void after_fork(void)
{
    if (sim_state != SIM_READY)
        return;
    sim_state = SIM_FORKED;
    sim_gate_forget();
    sim_segment_forget();
}

CUresult cuInit(unsigned flags)
{
    SIM_REQUIRE(flags == 0);
    CUresult result = CUDA_SUCCESS;
    /* The child of a fork may have inherited a lock that no thread will release. */
    if (__atomic_load_n(&sim_state, __ATOMIC_ACQUIRE) != SIM_UNINITIALIZED)
        return sim_entry();
    pthread_mutex_lock(&sim_contexts_lock);
    if (sim_state == SIM_UNINITIALIZED) {
        struct sim_config config;
        if (!sim_config_read(&config) || !sim_inject_init(&config))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!sim_segment_attach(&config))
            result = CUDA_ERROR_SYSTEM_NOT_READY;
        else if (!sim_memory_init())
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS && !sim_visible_choose(config.name))
            result = CUDA_ERROR_NO_DEVICE;
        if (result == CUDA_SUCCESS) {
            sim_ports = ports;
            sim_config = config;
            sim_fault_init();
            pthread_atfork(NULL, NULL, after_fork);
            __atomic_store_n(&sim_state, SIM_READY, __ATOMIC_RELEASE);
            sim_checkpoint_serve();
        }
    } else {
        result = sim_entry();
    }
    pthread_mutex_unlock(&sim_contexts_lock);
    return result;
}

__attribute__((destructor)) static void end(void)
{
    if (sim_state != SIM_READY)
        return;
    __atomic_store_n(&sim_state, SIM_ENDED, __ATOMIC_RELEASE);
    sim_segment_detach();
    sim_gate_open();
}

static struct sim_context *context_new(unsigned device, unsigned flags, bool is_primary, struct sim_context *parent)
{
    if (parent == NULL && !sim_segment_charge(device, SIM_CHARGE_CONTEXT, sim_config.context))
        return NULL;
    struct sim_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        goto refund;
    context->device = device;
    context->flags = flags;
    context->primary = is_primary;
    context->parent = parent;
    context->grown = parent != NULL; /* the primary context has taken this memory */
    context->id = next_context_id++;
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    pthread_mutex_init(&context->order, NULL);
    context->legacy = sim_stream_open(context, CU_STREAM_DEFAULT, 0, false, true);
    context->internal = sim_stream_open(context, CU_STREAM_NON_BLOCKING, 0, false, true);
    if (context->legacy != NULL && context->internal != NULL) {
        context->magic = SIM_CONTEXT_MAGIC;
        context->made_before = sim_contexts;
        __atomic_store_n(&sim_contexts, context, __ATOMIC_RELEASE);
        return context;
    }
    free(context);
refund:
    if (parent == NULL)
        sim_segment_refund(device, SIM_CHARGE_CONTEXT, sim_config.context);
    return NULL;
}

static struct sim_stream *first_open(struct sim_context *context)
{
    pthread_mutex_lock(&context->order);
    struct sim_stream *stream = context->streams;
    while (stream != NULL && !sim_stream_is_open(stream))
        stream = stream->next;
    pthread_mutex_unlock(&context->order);
    return stream;
}

static void end_memory(struct sim_context *context)
{
    sim_graph_memory_forget(context);
    sim_memory_release_context(context);
    sim_pool_trim_device(context->device);
}

static void context_free(struct sim_context *context)
{
    for (struct sim_context *green; (green = sim_context_next_green(context, NULL)) != NULL;)
        context_free(green);
    sim_context_drain(context);
    context->magic = 0;
    for (struct sim_stream *stream; (stream = first_open(context)) != NULL;)
        sim_stream_close(stream);
    sim_stream_close(context->legacy);
    sim_stream_close(context->internal);
    if (context->parent == NULL)
        end_memory(context);
    if (context->parent == NULL)
        sim_segment_refund(context->device, SIM_CHARGE_CONTEXT,
                           sim_config.context + (context->grown ? sim_config.context_growth : 0) + context->code);
    if (sim_context_current == context)
        sim_context_current = NULL;
    /* The structure stays, so that a handle which the application still has is recognised as invalid. */
}

static CUresult check_device(CUdevice device)
{
    SIM_ENTER();
    return device >= 0 && (unsigned)device < sim_segment_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    SIM_INJECT(cuDevicePrimaryCtxRetain);
    SIM_TRY(check_device(device));
    SIM_TRY(sim_process_check());
    SIM_REQUIRE(out != NULL);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_contexts_lock);
    struct sim_context *context = primary[device];
    if (context == NULL) {
        context = context_new((unsigned)device, primary_flags[device], true, NULL);
        primary[device] = context;
        if (context == NULL)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        context->retained++;
        *out = (CUcontext)context;
    }
    pthread_mutex_unlock(&sim_contexts_lock);
    return result;
}

/* The whole device is one resource. Which part of it a green context has does not matter here. */
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    SIM_TRY(check_device(device));
    SIM_REQUIRE(resource != NULL && type == CU_DEV_RESOURCE_TYPE_SM);
    *resource = (CUdevResource){.type = type, .sm = {.smCount = 132}};
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned count)
{
    static char any;
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && resources != NULL && count > 0);
    *out = (CUdevResourceDesc)(void *)&any;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
    CUcontext handle;
    SIM_INJECT(cuGreenCtxCreate);
    SIM_TRY(check_device(device));
    SIM_REQUIRE(out != NULL && description != NULL && flags == CU_GREEN_CTX_DEFAULT_STREAM);
    SIM_TRY(cuDevicePrimaryCtxRetain(&handle, device));
    pthread_mutex_lock(&sim_contexts_lock);
    struct sim_context *green = context_new((unsigned)device, 0, false, (struct sim_context *)handle);
    pthread_mutex_unlock(&sim_contexts_lock);
    *out = (CUgreenCtx)(void *)green;
    if (green != NULL)
        return CUDA_SUCCESS;
    cuDevicePrimaryCtxRelease_v2(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult find_green(CUgreenCtx handle, struct sim_context **green)
{
    SIM_ENTER();
    *green = (struct sim_context *)(void *)handle;
    return *green == NULL || (*green)->parent == NULL ? CUDA_ERROR_INVALID_HANDLE : sim_context_alive(*green);
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    struct sim_context *green;
    SIM_TRY(find_green(handle, &green));
    CUdevice device = (CUdevice)green->device;
    pthread_mutex_lock(&sim_contexts_lock);
    context_free(green);
    pthread_mutex_unlock(&sim_contexts_lock);
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
    struct sim_context *green;
    SIM_TRY(find_green(handle, &green));
    SIM_REQUIRE(out != NULL);
    *out = (CUcontext)green;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned flags, int priority)
{
    struct sim_context *green;
    SIM_INJECT(cuGreenCtxStreamCreate);
    SIM_TRY(find_green(handle, &green));
    SIM_TRY(sim_context_error(green));
    SIM_REQUIRE(out != NULL && flags == CU_STREAM_NON_BLOCKING);
    *out = (CUstream)sim_stream_open(green, flags, priority, false, false);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *out)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, SIM_LEGACY, &stream));
    SIM_REQUIRE(out != NULL);
    *out = stream->context->parent != NULL ? (CUgreenCtx)(void *)stream->context : NULL;
    return CUDA_SUCCESS;
}

static CUresult primary_drop(CUdevice device, bool reset)
{
    SIM_TRY(check_device(device));
    pthread_mutex_lock(&sim_contexts_lock);
    struct sim_context *context = primary[device];
    if (context == NULL) {
        pthread_mutex_unlock(&sim_contexts_lock);
        return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (reset || --context->retained == 0) {
        primary[device] = NULL;
        context_free(context);
    }
    pthread_mutex_unlock(&sim_contexts_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_drop(device, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return primary_drop(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_drop(device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return primary_drop(device, true);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    SIM_TRY(check_device(device));
    pthread_mutex_lock(&sim_contexts_lock);
    primary_flags[device] = flags;
    if (primary[device] != NULL)
        primary[device]->flags = flags;
    pthread_mutex_unlock(&sim_contexts_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    SIM_TRY(check_device(device));
    SIM_REQUIRE(flags != NULL && active != NULL);
    *flags = primary_flags[device];
    *active = primary[device] != NULL;
    return CUDA_SUCCESS;
}

static CUresult push(struct sim_context *context)
{
    if (below == NULL) {
        below = calloc(STACK_DEPTH, sizeof *below);
        if (below == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (below_count == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    below[below_count++] = sim_context_current;
    sim_context_current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    SIM_INJECT(cuCtxPushCurrent_v2);
    SIM_ENTER();
    if (handle == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sim_context *context = (struct sim_context *)handle;
    SIM_TRY(sim_context_alive(context));
    return push(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    SIM_ENTER();
    if (sim_context_current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out != NULL)
        *out = (CUcontext)sim_context_current;
    sim_context_current = below_count > 0 ? below[--below_count] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
    return cuCtxPopCurrent_v2(out);
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
    SIM_INJECT(cuCtxSetCurrent);
    SIM_ENTER();
    struct sim_context *context = (struct sim_context *)handle;
    if (context == NULL) {
        sim_context_current = below_count > 0 ? below[--below_count] : NULL;
        return CUDA_SUCCESS;
    }
    SIM_TRY(sim_context_alive(context));
    sim_context_current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL);
    *out = (CUcontext)sim_context_current;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    SIM_INJECT(cuCtxCreate);
    SIM_TRY(check_device(device));
    SIM_TRY(sim_process_check());
    SIM_REQUIRE(out != NULL);
    pthread_mutex_lock(&sim_contexts_lock);
    struct sim_context *context = context_new((unsigned)device, flags, false, NULL);
    pthread_mutex_unlock(&sim_contexts_lock);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUcontext)context;
    return push(context);
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return create(context, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return create(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    return affinity != NULL || count != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    if (parameters != NULL && (parameters->numExecAffinityParams != 0 || parameters->cigParams != NULL))
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
    SIM_INJECT(cuCtxDestroy_v2);
    SIM_ENTER();
    struct sim_context *context = (struct sim_context *)handle;
    if (context == NULL || context->primary || context->parent != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    SIM_TRY(sim_context_alive(context));
    bool current = sim_context_current == context;
    pthread_mutex_lock(&sim_contexts_lock);
    context_free(context);
    pthread_mutex_unlock(&sim_contexts_lock);
    if (current)
        sim_context_current = below_count > 0 ? below[--below_count] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && flags == 0);
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    __atomic_add_fetch(&context->attached, 1, __ATOMIC_RELAXED);
    *out = (CUcontext)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle)
{
    SIM_ENTER();
    struct sim_context *context = (struct sim_context *)handle;
    if (context == NULL || context->primary || context != sim_context_current)
        return CUDA_ERROR_INVALID_CONTEXT;
    SIM_TRY(sim_context_alive(context));
    if (context->attached == 0)
        return cuCtxDestroy_v2(handle);
    __atomic_sub_fetch(&context->attached, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext handle)
{
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(handle, &context));
    SIM_TRY(sim_capture_check_context(context));
    CUresult result = sim_context_drain(context);
    sim_pool_settle();
    return result != CUDA_SUCCESS ? result : sim_context_injected(context);
}

CUresult cuCtxSynchronize(void)
{
    SIM_INJECT(cuCtxSynchronize);
    return synchronize(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    SIM_INJECT(cuCtxSynchronize_v2);
    return synchronize(context);
}

static CUresult get_device(CUdevice *out, CUcontext handle)
{
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(handle, &context));
    SIM_REQUIRE(out != NULL);
    *out = (CUdevice)context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return get_device(device, NULL);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    return get_device(device, context);
}

CUresult cuCtxGetFlags(unsigned *flags)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(flags != NULL);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(handle, &context));
    SIM_REQUIRE(id != NULL);
    *id = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(handle, &context));
    SIM_REQUIRE(version != NULL);
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(value != NULL && (unsigned)limit < CU_LIMIT_MAX);
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE((unsigned)limit < CU_LIMIT_MAX);
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(config != NULL);
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    (void)config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}
