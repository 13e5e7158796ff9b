/* SPDX-License-Identifier: BSD-3-Clause */
#include "stream.h"

#include "capture.h"
#include "context.h"
#include "inject.h"
#include "ports.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define STREAM_MAGIC UINT64_C(0x53494d5354524d31)
/*
 * As in the driver, a submission blocks when this many operations are queued. Operations that only order others do not
 * block, because their caller may hold a lock that a worker needs.
 */
#define QUEUE_LIMIT 4096
/* How often a waiting thread checks before it sleeps: a wake-up costs more than the spinning. */
#define SPINS 100

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_stream *pool;
static unsigned long long next_id = 1;
static pthread_key_t per_thread_key;
static pthread_once_t per_thread_once = PTHREAD_ONCE_INIT;

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void sim_op_wait_for(struct sim_op *op, struct sim_point point)
{
    if (sim_point_passed(point))
        return;
    struct sim_point *points = realloc(op->points, (op->point_count + 1) * sizeof *points);
    if (points == NULL) { /* without memory for the list, wait here */
        sim_point_wait(point);
        return;
    }
    op->points = points;
    op->points[op->point_count++] = point;
}

bool sim_point_passed(struct sim_point point)
{
    return point.stream == NULL || __atomic_load_n(&point.stream->completed, __ATOMIC_SEQ_CST) >= point.sequence;
}

void sim_point_wait(struct sim_point point)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (sim_point_passed(point))
            return;
        relax();
    }
    struct sim_stream *stream = point.stream;
    pthread_mutex_lock(&stream->lock);
    __atomic_add_fetch(&stream->waiters, 1, __ATOMIC_SEQ_CST);
    while (!sim_point_passed(point))
        pthread_cond_wait(&stream->done, &stream->lock);
    __atomic_sub_fetch(&stream->waiters, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&stream->lock);
}

static void fail(struct sim_stream *stream, const struct sim_op *op)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->injected == CUDA_SUCCESS) {
        stream->injected_at = op->sequence;
        __atomic_store_n(&stream->injected, op->injected, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&stream->lock);
}

CUresult sim_point_injected(struct sim_point point)
{
    struct sim_stream *stream = point.stream;
    if (stream == NULL || __atomic_load_n(&stream->injected, __ATOMIC_ACQUIRE) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    if (stream->injected_at <= point.sequence) {
        result = stream->injected;
        stream->injected = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&stream->lock);
    return result;
}

struct sim_point sim_stream_end(struct sim_stream *stream)
{
    return (struct sim_point){stream, __atomic_load_n(&stream->submitted, __ATOMIC_SEQ_CST)};
}

static void complete(struct sim_stream *stream, uint64_t sequence)
{
    __atomic_store_n(&stream->completed, sequence, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&stream->waiters, __ATOMIC_SEQ_CST) == 0)
        return;
    pthread_mutex_lock(&stream->lock);
    pthread_cond_broadcast(&stream->done);
    pthread_mutex_unlock(&stream->lock);
}

struct sim_point sim_stream_promise(struct sim_stream *stream, unsigned count)
{
    pthread_mutex_lock(&stream->lock);
    struct sim_point first = {stream, stream->submitted + 1};
    __atomic_store_n(&stream->submitted, stream->submitted + count, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&stream->lock);
    return first;
}

void sim_point_reach(struct sim_point point)
{
    complete(point.stream, point.sequence);
}

/* Takes all queued operations, or returns NULL if the stream has ended. */
static struct sim_op *take(struct sim_stream *stream)
{
    for (unsigned i = 0; i < SPINS && __atomic_load_n(&stream->first, __ATOMIC_RELAXED) == NULL; i++)
        relax();
    pthread_mutex_lock(&stream->lock);
    while (stream->first == NULL && !stream->ending) {
        stream->asleep = true;
        pthread_cond_wait(&stream->more, &stream->lock);
        stream->asleep = false;
    }
    struct sim_op *ops = stream->first;
    stream->first = stream->last = NULL;
    if (ops == NULL)
        stream->has_worker = false;
    pthread_mutex_unlock(&stream->lock);
    return ops;
}

/*
 * Pending operations of a closed stream still count as work of the context, so the stream stays in the list until they
 * are done.
 */
static void retire(struct sim_stream *stream)
{
    struct sim_context *context = stream->context;
    if (!stream->hidden) {
        pthread_mutex_lock(&context->order);
        if (stream->previous != NULL)
            stream->previous->next = stream->next;
        else
            context->streams = stream->next;
        if (stream->next != NULL)
            stream->next->previous = stream->previous;
        pthread_mutex_unlock(&context->order);
    }
    pthread_mutex_lock(&pool_lock);
    stream->next = pool;
    pool = stream;
    pthread_mutex_unlock(&pool_lock);
}

bool sim_stream_is_open(const struct sim_stream *stream)
{
    return __atomic_load_n(&stream->magic, __ATOMIC_RELAXED) == STREAM_MAGIC;
}

static void *work(void *argument)
{
    struct sim_stream *stream = argument;
    prctl(PR_SET_NAME, "sim-stream");
    prctl(PR_SET_TIMERSLACK, 1UL);
    /* A woken worker must not take the processor from the thread that launched. */
    const struct sched_param none = {.sched_priority = 0};
    sched_setscheduler(0, SCHED_BATCH, &none);
    for (struct sim_op *op; (op = take(stream)) != NULL;) {
        while (op != NULL) {
            struct sim_op *next = op->next;
            for (unsigned i = 0; i < op->point_count; i++)
                sim_point_wait(op->points[i]);
            if (op->injected != CUDA_SUCCESS) {
                fail(stream, op);
            } else if (sim_context_error(stream->context) == CUDA_SUCCESS || op->despite_error) {
                CUresult result = op->run(stream->context, op);
                if (result != CUDA_SUCCESS)
                    sim_context_fail(stream->context, result);
            }
            complete(stream, op->sequence);
            sim_op_release(op);
            op = next;
        }
    }
    retire(stream);
    return NULL;
}

static CUresult start_worker(struct sim_stream *stream)
{
    /* The application's signals must be delivered to its own threads, but faults must stay deliverable. */
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, work, stream);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->has_worker = true;
    return CUDA_SUCCESS;
}

CUresult sim_stream_push(struct sim_stream *stream, struct sim_op *op, struct sim_point *point)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->ending && !stream->has_worker) { /* another thread has closed it meanwhile */
        pthread_mutex_unlock(&stream->lock);
        sim_op_release(op);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!stream->has_worker) {
        CUresult started = start_worker(stream);
        if (started != CUDA_SUCCESS) {
            pthread_mutex_unlock(&stream->lock);
            sim_op_release(op);
            return started;
        }
    }
    op->next = NULL;
    op->sequence = stream->submitted + 1;
    if (point != NULL)
        *point = (struct sim_point){stream, op->sequence};
    if (stream->last == NULL)
        __atomic_store_n(&stream->first, op, __ATOMIC_RELAXED);
    else
        stream->last->next = op;
    stream->last = op;
    __atomic_store_n(&stream->submitted, op->sequence, __ATOMIC_SEQ_CST);
    bool wake = stream->asleep;
    pthread_mutex_unlock(&stream->lock);
    if (wake)
        pthread_cond_signal(&stream->more);
    return CUDA_SUCCESS;
}

CUresult sim_context_injected(struct sim_context *context)
{
    CUresult result = sim_point_injected(sim_stream_end(context->legacy));
    pthread_mutex_lock(&context->order);
    for (struct sim_stream *stream = context->streams; stream != NULL && result == CUDA_SUCCESS; stream = stream->next)
        result = sim_point_injected(sim_stream_end(stream));
    pthread_mutex_unlock(&context->order);
    return result;
}

CUresult sim_stream_check_legacy(struct sim_stream *stream)
{
    struct sim_context *context = stream->context;
    if (stream != context->legacy || __atomic_load_n(&context->blocking_captures, __ATOMIC_RELAXED) == 0)
        return CUDA_SUCCESS;
    sim_capture_invalidate_context(context);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_stream_submit(struct sim_stream *stream, struct sim_op *op, struct sim_point *point)
{
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->capture != NULL)
        return sim_capture_record(stream, op);
    struct sim_context *context = stream->context;
    CUresult refused = sim_stream_check_legacy(stream);
    if (refused != CUDA_SUCCESS) {
        sim_op_release(op);
        return refused;
    }
    uint64_t before = __atomic_load_n(&stream->submitted, __ATOMIC_RELAXED);
    if (before > QUEUE_LIMIT && !sim_op_only_orders(op->kind))
        sim_point_wait((struct sim_point){stream, before - QUEUE_LIMIT});
    if (!stream->blocking && stream != context->legacy)
        return sim_stream_push(stream, op, point);
    pthread_mutex_lock(&context->order);
    if (stream == context->legacy) {
        for (struct sim_stream *other = context->streams; other != NULL; other = other->next)
            if (other->blocking)
                sim_op_wait_for(op, sim_stream_end(other));
    } else {
        sim_op_wait_for(op, sim_stream_end(context->legacy));
    }
    CUresult result = sim_stream_push(stream, op, point);
    pthread_mutex_unlock(&context->order);
    return result;
}

CUresult sim_stream_run(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_point point = {NULL, 0};
    struct sim_context *context = stream->context;
    SIM_TRY(sim_stream_submit(stream, op, &point));
    sim_point_wait(point);
    SIM_TRY(sim_point_injected(point));
    return sim_context_error(context);
}

struct sim_stream *sim_stream_open(struct sim_context *context, unsigned flags, int priority, bool blocking,
                                   bool hidden)
{
    pthread_mutex_lock(&pool_lock);
    struct sim_stream *stream = pool;
    if (stream != NULL)
        pool = stream->next;
    unsigned long long id = next_id++;
    pthread_mutex_unlock(&pool_lock);
    if (stream == NULL) {
        stream = calloc(1, sizeof *stream);
        if (stream == NULL)
            return NULL;
        pthread_mutex_init(&stream->lock, NULL);
        pthread_cond_init(&stream->more, NULL);
        pthread_cond_init(&stream->done, NULL);
    }
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = id;
    stream->blocking = blocking;
    stream->hidden = hidden;
    stream->capture = NULL;
    stream->injected = CUDA_SUCCESS;
    stream->ending = false;
    stream->next = stream->previous = NULL;
    stream->magic = STREAM_MAGIC;
    if (hidden)
        return stream;
    pthread_mutex_lock(&context->order);
    stream->next = context->streams;
    if (stream->next != NULL)
        stream->next->previous = stream;
    context->streams = stream;
    uint64_t waits = context->waits;
    pthread_mutex_unlock(&context->order);
    if (waits != 0 && !sim_point_passed((struct sim_point){context->internal, waits})) {
        struct sim_op *op = sim_op_new(SIM_OP_OTHER, 0, sim_op_nothing);
        if (op != NULL) {
            sim_op_wait_for(op, (struct sim_point){context->internal, waits});
            sim_stream_push(stream, op, NULL);
        }
    }
    return stream;
}

void sim_stream_close(struct sim_stream *stream)
{
    sim_capture_abandon(stream);
    pthread_mutex_lock(&stream->lock);
    __atomic_store_n(&stream->magic, 0, __ATOMIC_RELAXED);
    stream->ending = true;
    bool has_worker = stream->has_worker;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
    if (!has_worker)
        retire(stream);
}

struct per_thread {
    struct per_thread *next;
    struct sim_stream *stream;
    unsigned long long context_id;
};

static void end_thread(void *argument)
{
    for (struct per_thread *entry = argument, *next; entry != NULL; entry = next) {
        next = entry->next;
        if (sim_entry() == CUDA_SUCCESS && entry->stream->magic == STREAM_MAGIC &&
            entry->stream->context->id == entry->context_id)
            sim_stream_close(entry->stream);
        free(entry);
    }
}

static void make_key(void)
{
    pthread_key_create(&per_thread_key, end_thread);
}

static struct sim_stream *per_thread_stream(struct sim_context *context)
{
    pthread_once(&per_thread_once, make_key);
    struct per_thread *head = pthread_getspecific(per_thread_key);
    for (struct per_thread *entry = head; entry != NULL; entry = entry->next)
        if (entry->context_id == context->id)
            return entry->stream;
    struct per_thread *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return NULL;
    *entry = (struct per_thread){head, sim_stream_open(context, CU_STREAM_DEFAULT, 0, true, false), context->id};
    if (entry->stream == NULL || pthread_setspecific(per_thread_key, entry) != 0) {
        free(entry);
        return NULL;
    }
    return entry->stream;
}

CUresult sim_stream_resolve(struct sim_context *context, CUstream handle, enum sim_stream_default meant,
                            struct sim_stream **stream)
{
    if (handle == CU_STREAM_LEGACY || (handle == NULL && meant == SIM_LEGACY)) {
        *stream = context->legacy;
    } else if (handle == CU_STREAM_PER_THREAD || handle == NULL) {
        *stream = per_thread_stream(context);
        if (*stream == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        *stream = (struct sim_stream *)handle;
        if ((*stream)->magic != STREAM_MAGIC || (*stream)->hidden)
            return CUDA_ERROR_INVALID_HANDLE;
        return sim_context_error((*stream)->context);
    }
    return CUDA_SUCCESS;
}

CUresult sim_stream_check_synchronize(struct sim_stream *stream, bool copies)
{
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (sim_config.strict && !copies)
        SIM_TRY(sim_capture_check_unsafe());
    return sim_stream_check_legacy(stream);
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) == 0);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct sim_stream *stream = sim_stream_open(context, flags, priority, (flags & CU_STREAM_NON_BLOCKING) == 0, false);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    SIM_INJECT(cuStreamCreate);
    return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    SIM_INJECT(cuStreamCreateWithPriority);
    return create(stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    SIM_INJECT(cuStreamDestroy_v2);
    SIM_ENTER();
    struct sim_stream *stream = (struct sim_stream *)handle;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_process_check());
    sim_stream_close(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

/* A stream that the program has created belongs to a context, whichever context is current. */
CUresult sim_stream_enter(CUstream handle, enum sim_stream_default meant, struct sim_stream **stream)
{
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        SIM_ENTER();
        return sim_stream_resolve(NULL, handle, meant, stream);
    }
    SIM_ENTER_CONTEXT(context);
    return sim_stream_resolve(context, handle, meant, stream);
}

static CUresult query(CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(sim_stream_check_synchronize(stream, false));
    if (!sim_point_passed(sim_stream_end(stream)))
        return CUDA_ERROR_NOT_READY;
    SIM_TRY(sim_point_injected(sim_stream_end(stream)));
    return sim_context_error(stream->context);
}

SIM_PAIR(cuStreamQuery, _ptsz, (CUstream stream), query(stream, meant))

static CUresult synchronize(CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(sim_stream_check_synchronize(stream, false));
    struct sim_context *context = stream->context;
    /* The legacy stream is complete when the blocking streams that it would wait for are complete. */
    if (stream == context->legacy) {
        SIM_TRY(sim_stream_run(stream, sim_op_new(SIM_OP_OTHER, 0, sim_op_nothing)));
        sim_ports.settle();
        return sim_context_injected(context);
    }
    struct sim_point end = sim_stream_end(stream);
    sim_point_wait(end);
    sim_ports.settle();
    SIM_TRY(sim_point_injected(end));
    return sim_context_error(context);
}

SIM_PAIR(cuStreamSynchronize, _ptsz, (CUstream stream), synchronize(stream, meant))

struct host_call {
    CUhostFn function;
    CUstreamCallback callback;
    CUstream stream;
    void *argument;
};

static CUresult run_host(struct sim_context *context, struct sim_op *op)
{
    struct host_call *call = (struct host_call *)op->payload;
    if (call->callback != NULL)
        call->callback(call->stream, sim_context_error(context), call->argument);
    else
        call->function(call->argument);
    return CUDA_SUCCESS;
}

struct sim_op *sim_op_host(CUhostFn function, void *argument)
{
    struct sim_op *op = sim_op_new(SIM_OP_HOST, sizeof(struct host_call), run_host);
    if (op != NULL)
        *(struct host_call *)op->payload = (struct host_call){.function = function, .argument = argument};
    return op;
}

void sim_op_host_call(const struct sim_op *op, CUhostFn *function, void **argument)
{
    const struct host_call *call = (const struct host_call *)op->payload;
    *function = call->function;
    *argument = call->argument;
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *argument, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(function != NULL);
    return sim_stream_submit(stream, sim_op_host(function, argument), NULL);
}

SIM_PAIR(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void *argument),
         launch_host(stream, function, argument, meant))
SIM_PAIR(cuLaunchHostFunc_v2, _ptsz, (CUstream stream, CUhostFn function, void *argument, unsigned mode),
         ((void)mode, launch_host(stream, function, argument, meant)))

static CUresult add_callback(CUstream handle, CUstreamCallback callback, void *argument, unsigned flags,
                             enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(callback != NULL && flags == 0);
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sim_op *op = sim_op_new(SIM_OP_HOST, sizeof(struct host_call), run_host);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->despite_error = true;
    *(struct host_call *)op->payload = (struct host_call){.callback = callback, .stream = handle, .argument = argument};
    return sim_stream_submit(stream, op, NULL);
}

SIM_PAIR(cuStreamAddCallback, _ptsz, (CUstream stream, CUstreamCallback callback, void *argument, unsigned flags),
         add_callback(stream, callback, argument, flags, meant))

static CUresult look(CUstream handle, enum sim_stream_default meant, const void *out, struct sim_stream **stream)
{
    CUresult result = sim_stream_enter(handle, meant, stream);
    return result == CUDA_SUCCESS && out == NULL ? CUDA_ERROR_INVALID_VALUE : result;
}

#define GETTER(name, type, expression)                                                                                 \
    static CUresult get_##name(CUstream handle, type *out, enum sim_stream_default meant)                              \
    {                                                                                                                  \
        struct sim_stream *stream;                                                                                     \
        SIM_TRY(look(handle, meant, out, &stream));                                                                    \
        *out = expression;                                                                                             \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    SIM_PAIR(cuStreamGet##name, _ptsz, (CUstream stream, type * out), get_##name(stream, out, meant))

GETTER(Flags, unsigned, stream->flags)
GETTER(Priority, int, stream->priority)
GETTER(Id, unsigned long long, stream->id)
GETTER(Ctx, CUcontext, (CUcontext)stream->context)
GETTER(Device, CUdevice, (CUdevice)stream->context->device)

static CUresult get_ctx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green, enum sim_stream_default meant)
{
    if (green != NULL)
        *green = NULL;
    return get_Ctx(handle, context, meant);
}

SIM_PAIR(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext *context, CUgreenCtx *green),
         get_ctx_v2(stream, context, green, meant))

static CUresult attach(CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    return sim_stream_enter(handle, meant, &stream);
}

SIM_PAIR(cuStreamAttachMemAsync, _ptsz, (CUstream stream, CUdeviceptr pointer, size_t length, unsigned flags),
         ((void)pointer, (void)length, (void)flags, attach(stream, meant)))
