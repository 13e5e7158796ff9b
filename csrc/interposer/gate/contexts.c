/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on initialisation, and on the life of contexts and of modules. */
#include "gate/contexts.h"

#include "base/interrupt.h"
#include "base/lock.h"
#include "base/session.h"
#include "client/client.h"
#include "client/placement.h"
#include "gate/enter.h"
#include "gate/meter.h"
#include "hooks/capture.h"
#include "loader/real.h"
#include "memory/memory.h"
#include "memory/vmm.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* No count of submissions. */
#define NOT_IDLE UINT64_MAX

struct context {
    CUcontext handle;
    CUcontext parent; /* of a green context, the device's primary one: all memory is that one's */
    CUdevice device;
    CUevent event;     /* made at the first drain */
    CUevent mark;      /* made at the first mark */
    unsigned retained; /* of a primary context */
    unsigned attached; /* of another, beside whoever made it */
    bool primary;
    bool charged;     /* it was admitted */
    bool pending;     /* recorded in this drain and not seen done */
    uint64_t waits;   /* the drain that a thread is to synchronise it for; 0: none */
    bool ending;      /* being reset: not to be used from other threads */
    bool was_reset;   /* and perhaps nobody has retained it since */
    CUevent probe;    /* never recorded: asked, it tells of the context's failure */
    uint64_t idle;    /* submissions when all of its work was done */
    CUresult failure; /* CUDA_SUCCESS: none is known */
    bool attended;    /* to the failure: gs_context_take_failed has returned it */
    struct context *next;
};

static struct {
    struct gs_mutex lock;
    struct context *first;
    uint64_t draining; /* submissions before the drain; NOT_IDLE: some work is not seen by it */
    uint64_t idle;     /* submissions when all was done; read without the lock */
    unsigned failed;   /* contexts; read without the lock */
    /* A device's primary context is being made for the first time, reset, or released for the last time. */
    struct {
        bool changing;
        unsigned changes;
        CUresult result;
    } primaries[GPUSHARE_MAX_GPUS];
    pthread_cond_t changed;
    uint32_t removals;
    /* Where nothing can be recorded, a thread synchronises. */
    struct {
        bool runs;
        uint64_t drains;
        CUcontext context; /* that it is in now */
    } synchronizing;
} contexts = {.lock = GS_MUTEX(GS_RANK_CONTEXTS), .changed = PTHREAD_COND_INITIALIZER};

static struct context *find_locked(CUcontext handle)
{
    struct context *context = contexts.first;
    while (context != NULL && context->handle != handle)
        context = context->next;
    return context;
}

/* Returns whether the context takes a charge: it was admitted, and has none yet. */
static bool add(CUcontext handle, CUdevice device, bool primary, bool admitted)
{
    bool takes = false;
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(handle);
    if (context == NULL && (context = calloc(1, sizeof(*context))) != NULL) {
        context->handle = handle;
        context->device = device;
        context->idle = NOT_IDLE;
        context->next = contexts.first;
        contexts.first = context;
        /* What others made may be at work already. */
        if (!admitted)
            __atomic_store_n(&contexts.idle, NOT_IDLE, __ATOMIC_RELEASE);
    }
    if (context != NULL) {
        takes = admitted && !context->charged;
        context->charged = context->charged || admitted;
        context->primary = context->primary || primary;
        context->retained += primary;
    }
    gs_mutex_unlock(&contexts.lock);
    if (context != NULL && gs_session_attached()) {
        gs_vmm_context_begins(handle, device);
        gs_memory_context_begins(handle, device);
    }
    return takes;
}

/* --- Failures --- */

/* What no call in the context recovers from. */
static bool is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

static void forget_failure_locked(struct context *context)
{
    if (context->failure != CUDA_SUCCESS)
        __atomic_sub_fetch(&contexts.failed, 1, __ATOMIC_RELEASE);
    context->failure = CUDA_SUCCESS;
    context->attended = false;
}

/* Nothing is to be synchronised any more in a context that ends. */
static void leave_context_locked(CUcontext handle)
{
    struct context *context = find_locked(handle);
    if (context != NULL)
        context->waits = 0;
    while (contexts.synchronizing.context == handle && handle != NULL)
        gs_cond_wait(&contexts.changed, &contexts.lock);
}

static void note_failure_locked(struct context *context, CUresult result)
{
    if (!is_sticky(result) || context->failure != CUDA_SUCCESS)
        return;
    context->failure = result;
    __atomic_add_fetch(&contexts.failed, 1, __ATOMIC_RELEASE);
    gs_client_context_failed();
}

static void note_failure(CUcontext handle, CUresult result)
{
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(handle);
    if (context != NULL)
        note_failure_locked(context, result);
    gs_mutex_unlock(&contexts.lock);
}

/* One that is current can have been destroyed, or reset and not retained since. The driver knows. */
static bool may_be_gone_locked(const struct context *context)
{
    return context == NULL || context->was_reset;
}

static CUresult ask_whether_gone(CUcontext current)
{
    size_t available, total;
    CUresult result = GS_REAL(cuMemGetInfo_v2)(&available, &total);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || is_sticky(result))
        return result;
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(current);
    if (context != NULL)
        context->was_reset = false;
    gs_mutex_unlock(&contexts.lock);
    return CUDA_SUCCESS;
}

CUresult gs_context_known_failure(void)
{
    CUcontext current = NULL;
    if ((__atomic_load_n(&contexts.failed, __ATOMIC_ACQUIRE) == 0 &&
         __atomic_load_n(&contexts.removals, __ATOMIC_ACQUIRE) == 0) ||
        GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(current);
    bool may_be_gone = may_be_gone_locked(context);
    CUresult failure = context != NULL ? context->failure : CUDA_SUCCESS;
    gs_mutex_unlock(&contexts.lock);
    return may_be_gone ? ask_whether_gone(current) : failure;
}

/* The event to ask for the failure of a context, which is current; NULL: there is none, and *failure says why. */
static CUevent probe_of(CUcontext handle, CUresult *failure)
{
    CUevent probe = NULL;
    *failure = CUDA_SUCCESS;
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(handle);
    if (may_be_gone_locked(context)) {
        gs_mutex_unlock(&contexts.lock);
        *failure = ask_whether_gone(handle);
        return NULL;
    }
    if (context != NULL && context->failure == CUDA_SUCCESS && context->probe == NULL && !context->ending) {
        CUresult result = GS_REAL(cuEventCreate)(&context->probe, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS)
            context->probe = NULL;
        note_failure_locked(context, result);
    }
    if (context != NULL) {
        probe = context->probe;
        *failure = context->failure;
    }
    gs_mutex_unlock(&contexts.lock);
    return probe;
}

static CUresult ask_failure(CUcontext current)
{
    CUresult failure;
    CUevent probe = probe_of(current, &failure);
    if (failure != CUDA_SUCCESS || probe == NULL)
        return failure;
    CUresult result = GS_REAL(cuEventQuery)(probe);
    if (!is_sticky(result))
        return CUDA_SUCCESS;
    note_failure(current, result);
    return result;
}

CUresult gs_context_ask_failure(void)
{
    CUcontext current = NULL;
    if (!gs_session_attached())
        return CUDA_SUCCESS;
    /* Only work fails: where none was submitted since all was done, what was seen then is still the answer. */
    if (gs_context_idle(gs_gate_passes()))
        return gs_context_known_failure();
    if (GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    /* To change the thread's mode twice takes longer than all the rest. */
    if (gs_capture_forbid()) {
        CUresult result = ask_failure(current);
        gs_capture_allow();
        return result;
    }
    GS_LEAVES_CAPTURES_ALONE;
    return ask_failure(current);
}

/* To ask for an event is forbidden where to allocate and to free is. */
CUresult gs_context_ask_captures(void)
{
    CUcontext current = NULL;
    CUresult failure;
    if (!gs_capture_open() || GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    CUevent probe = probe_of(current, &failure);
    CUresult result = probe != NULL ? GS_REAL(cuEventQuery)(probe) : CUDA_SUCCESS;
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? result : CUDA_SUCCESS;
}

/* Which context it was is for each of them to say: the error of a call may be that of another than the current one. */
void gs_context_observed(CUresult result)
{
    if (!is_sticky(result) || !gs_session_attached())
        return;
    GS_LEAVES_CAPTURES_ALONE;
    gs_mutex_lock(&contexts.lock);
    for (struct context *context = contexts.first; context != NULL; context = context->next) {
        CUcontext ignored;
        size_t available, total;
        if (context->failure != CUDA_SUCCESS || context->ending ||
            GS_REAL(cuCtxPushCurrent_v2)(context->handle) != CUDA_SUCCESS)
            continue;
        note_failure_locked(context, GS_REAL(cuMemGetInfo_v2)(&available, &total));
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    gs_mutex_unlock(&contexts.lock);
}

CUcontext gs_context_take_failed(void)
{
    if (__atomic_load_n(&contexts.failed, __ATOMIC_ACQUIRE) == 0)
        return NULL;
    gs_mutex_lock(&contexts.lock);
    struct context *context = contexts.first;
    while (context != NULL && (context->failure == CUDA_SUCCESS || context->attended || context->ending))
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    if (context != NULL)
        context->attended = true;
    gs_mutex_unlock(&contexts.lock);
    return handle;
}

/* --- Which there are --- */

bool gs_context_alive(CUcontext handle)
{
    gs_mutex_lock(&contexts.lock);
    bool alive = find_locked(handle) != NULL;
    gs_mutex_unlock(&contexts.lock);
    return alive;
}

CUcontext gs_context_any(void)
{
    gs_mutex_lock(&contexts.lock);
    struct context *context = contexts.first;
    while (context != NULL && (context->ending || context->parent != NULL || context->failure != CUDA_SUCCESS))
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    gs_mutex_unlock(&contexts.lock);
    return handle;
}

CUcontext gs_context_owner(CUcontext handle)
{
    gs_mutex_lock(&contexts.lock);
    const struct context *context = find_locked(handle);
    CUcontext owner = context != NULL && context->parent != NULL ? context->parent : handle;
    gs_mutex_unlock(&contexts.lock);
    return owner;
}

CUcontext gs_context_on(CUdevice device, CUcontext except)
{
    CUcontext current = NULL, found = NULL;
    GS_REAL(cuCtxGetCurrent)(&current);
    gs_mutex_lock(&contexts.lock);
    /* One that others made may end without our knowledge. */
    for (int others = 0; others < 2 && found == NULL; others++)
        for (struct context *context = contexts.first; context != NULL; context = context->next)
            if (context->device == device && context->handle != except && !context->ending && context->parent == NULL &&
                context->charged == !others && context->failure == CUDA_SUCCESS &&
                (found == NULL || context->handle == current))
                found = context->handle;
    gs_mutex_unlock(&contexts.lock);
    return found;
}

unsigned gs_context_all_on(CUdevice device, CUcontext *found, unsigned most)
{
    unsigned count = 0;
    gs_mutex_lock(&contexts.lock);
    for (struct context *context = contexts.first; context != NULL; context = context->next)
        if (context->device == device && !context->ending && context->failure == CUDA_SUCCESS && count++ < most)
            found[count - 1] = context->handle;
    gs_mutex_unlock(&contexts.lock);
    return count;
}

static void remove_context(CUcontext handle)
{
    gs_mutex_lock(&contexts.lock);
    leave_context_locked(handle);
    struct context **link = &contexts.first;
    while (*link != NULL && (*link)->handle != handle)
        link = &(*link)->next;
    struct context *gone = *link;
    if (gone != NULL) {
        forget_failure_locked(gone);
        *link = gone->next;
    }
    __atomic_add_fetch(&contexts.removals, 1, __ATOMIC_RELEASE);
    gs_mutex_unlock(&contexts.lock);
    if (gone != NULL && gone->charged)
        gs_memory_context_gone(gone->device);
    free(gone);
}

/* The primary context of a device, if it is known. */
static struct context *primary_locked(CUdevice device)
{
    struct context *context = contexts.first;
    while (context != NULL && !(context->primary && context->device == device))
        context = context->next;
    return context;
}

/*
 * Waits until the primary context is there or is not: several threads may retain and release it at once, and only the
 * first has to be admitted. What became of the change that was waited for; a wait that was cancelled is cancelled for
 * all.
 */
static CUresult await_primary_locked(CUdevice device)
{
    CUresult result = CUDA_SUCCESS;
    if (device < 0 || device >= GPUSHARE_MAX_GPUS)
        return result; /* the driver will say what is wrong with it */
    /* Whoever makes the change may wait for the scheduler, and an interrupt reaches the main thread only. */
    if (contexts.primaries[device].changing)
        gs_interrupt_watch();
    while (result == CUDA_SUCCESS && contexts.primaries[device].changing) {
        unsigned change = contexts.primaries[device].changes;
        while (contexts.primaries[device].changing && contexts.primaries[device].changes == change)
            gs_cond_wait(&contexts.changed, &contexts.lock);
        result = contexts.primaries[device].result;
    }
    return result;
}

static void begin_change_locked(CUdevice device)
{
    if (device >= 0 && device < GPUSHARE_MAX_GPUS)
        contexts.primaries[device].changing = true;
}

static void end_change(CUdevice device, CUresult result)
{
    if (device < 0 || device >= GPUSHARE_MAX_GPUS)
        return;
    gs_mutex_lock(&contexts.lock);
    contexts.primaries[device].changing = false;
    contexts.primaries[device].changes++;
    contexts.primaries[device].result = result;
    pthread_cond_broadcast(&contexts.changed);
    gs_mutex_unlock(&contexts.lock);
}

static struct context *waiting_locked(void)
{
    struct context *context = contexts.first;
    while (context != NULL && context->waits == 0)
        context = context->next;
    return context;
}

/* Ends where captures are open, which it would break off; whoever asks for the drain's end starts it again. */
static void *synchronize_waiting(void *ignored)
{
    pthread_setname_np(pthread_self(), "gpushare-drain");
    gs_mutex_lock(&contexts.lock);
    for (struct context *context; (context = waiting_locked()) != NULL;) {
        CUcontext handle = contexts.synchronizing.context = context->handle;
        uint64_t drain = context->waits;
        gs_mutex_unlock(&contexts.lock);
        CUresult result = CUDA_ERROR_NOT_READY;
        if (gs_capture_forbid()) {
            result = GS_REAL(cuCtxSetCurrent)(handle);
            if (result == CUDA_SUCCESS)
                result = GS_REAL(cuCtxSynchronize)();
            gs_capture_allow();
        }
        gs_mutex_lock(&contexts.lock);
        contexts.synchronizing.context = NULL;
        pthread_cond_broadcast(&contexts.changed);
        if (result == CUDA_ERROR_NOT_READY)
            break;
        context = find_locked(handle);
        if (context == NULL)
            continue;
        note_failure_locked(context, result);
        if (context->waits == drain)
            context->waits = 0;
    }
    contexts.synchronizing.runs = false;
    gs_mutex_unlock(&contexts.lock);
    return ignored;
}

/* Where no thread can be started now, the next time that it is asked for. */
static void synchronize_locked(void)
{
    if (contexts.synchronizing.runs || waiting_locked() == NULL)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    contexts.synchronizing.runs = pthread_create(&thread, NULL, synchronize_waiting, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (contexts.synchronizing.runs)
        pthread_detach(thread);
}

bool gs_context_begin_drain(bool force)
{
    bool begun = true, forbidden = gs_capture_forbid();
    if (!forbidden && !force)
        return false;
    gs_mutex_lock(&contexts.lock);
    contexts.draining = gs_gate_submissions();
    uint64_t drain = ++contexts.synchronizing.drains;
    for (struct context *context = contexts.first; context != NULL; context = context->next) {
        context->pending = false;
        context->waits = 0;
        if (context->failure != CUDA_SUCCESS)
            continue; /* nothing runs there any more */
        if (context->ending || GS_REAL(cuCtxSetCurrent)(context->handle) != CUDA_SUCCESS) {
            contexts.draining = NOT_IDLE;
            continue;
        }
        bool records = gs_real_has(GS_FN_cuCtxRecordEvent);
        if (records && context->event == NULL &&
            GS_REAL(cuEventCreate)(&context->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            context->event = NULL;
        context->pending = records && context->event != NULL &&
                           GS_REAL(cuCtxRecordEvent)(context->handle, context->event) == CUDA_SUCCESS;
        if (context->pending)
            continue;
        /* Not here: what is in flight may wait for a thread that waits for us. */
        context->waits = forbidden ? drain : 0;
        if (context->waits != 0)
            continue;
        /* With a capture open, neither works: the capture is broken off, and its end must be waited for. */
        CUresult result = GS_REAL(cuCtxSynchronize)();
        if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            begun = false;
        note_failure_locked(context, result);
    }
    if (!begun)
        contexts.draining = NOT_IDLE;
    synchronize_locked();
    gs_mutex_unlock(&contexts.lock);
    if (forbidden)
        gs_capture_allow();
    else if (begun)
        gs_capture_forget();
    return begun;
}

bool gs_context_drained(void)
{
    gs_mutex_lock(&contexts.lock);
    synchronize_locked();
    bool drained = waiting_locked() == NULL;
    for (struct context *context = contexts.first; context != NULL; context = context->next) {
        if (!context->pending)
            continue;
        CUresult result = GS_REAL(cuEventQuery)(context->event);
        context->pending = result == CUDA_ERROR_NOT_READY;
        note_failure_locked(context, result);
        drained = drained && !context->pending;
    }
    if (drained && contexts.draining != NOT_IDLE)
        __atomic_store_n(&contexts.idle, contexts.draining, __ATOMIC_RELEASE);
    gs_mutex_unlock(&contexts.lock);
    return drained;
}

bool gs_context_idle(uint64_t submissions)
{
    return submissions == __atomic_load_n(&contexts.idle, __ATOMIC_ACQUIRE);
}

void gs_context_synchronized(CUcontext handle, uint64_t submissions)
{
    bool all = true;
    gs_mutex_lock(&contexts.lock);
    struct context *synchronized = find_locked(handle);
    if (synchronized != NULL)
        synchronized->idle = submissions;
    /* Of a context that is not known, nothing says which work it waits for. */
    for (struct context *context = contexts.first; context != NULL && all; context = context->next)
        all = context->failure != CUDA_SUCCESS || (!context->ending && context->idle == submissions);
    if (synchronized != NULL && all)
        __atomic_store_n(&contexts.idle, submissions, __ATOMIC_RELEASE);
    gs_mutex_unlock(&contexts.lock);
}

static bool record_mark(struct context *context)
{
    CUcontext ignored;
    if (context->mark == NULL && GS_REAL(cuCtxPushCurrent_v2)(context->handle) == CUDA_SUCCESS) {
        if (GS_REAL(cuEventCreate)(&context->mark, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            context->mark = NULL;
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    return context->mark != NULL && GS_REAL(cuCtxRecordEvent)(context->handle, context->mark) == CUDA_SUCCESS;
}

bool gs_context_mark(void)
{
    GS_LEAVES_CAPTURES_ALONE;
    bool marked = gs_real_has(GS_FN_cuCtxRecordEvent) && gs_capture_forbid();
    if (!marked)
        return false;
    gs_mutex_lock(&contexts.lock);
    for (struct context *context = contexts.first; context != NULL && marked; context = context->next)
        marked = context->failure != CUDA_SUCCESS || (!context->ending && record_mark(context));
    gs_mutex_unlock(&contexts.lock);
    gs_capture_allow();
    return marked;
}

bool gs_context_mark_passed(void)
{
    bool passed = true;
    GS_LEAVES_CAPTURES_ALONE;
    gs_mutex_lock(&contexts.lock);
    for (struct context *context = contexts.first; context != NULL && passed; context = context->next)
        passed = context->failure != CUDA_SUCCESS ||
                 (!context->ending && context->mark != NULL && GS_REAL(cuEventQuery)(context->mark) == CUDA_SUCCESS);
    gs_mutex_unlock(&contexts.lock);
    return passed;
}

void gs_context_after_fork(void)
{
    gs_mutex_after_fork(&contexts.lock);
    pthread_cond_init(&contexts.changed, NULL);
    /* The threads that were at it are the parent's. */
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        contexts.primaries[i].changing = false;
    contexts.synchronizing.runs = false;
    contexts.synchronizing.context = NULL;
}

/* --- Hooks --- */

CUresult CUDAAPI cuInit(unsigned int flags)
{
    gs_session_report_fork();
    bool placing = gs_placement_begin();
    CUresult result = GS_REAL(cuInit)(flags);
    if (placing)
        gs_placement_end(result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS)
        gs_client_start();
    return result;
}

static CUresult created(CUresult result, CUcontext *handle, CUdevice device)
{
    if (result == CUDA_SUCCESS) {
        add(*handle, device, false, true);
        gs_memory_context_begun(device);
    } else {
        gs_memory_context_gone(device);
    }
    return result;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_memory_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate)(handle, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_memory_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v2)(handle, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                CUdevice device)
{
    CUresult refused = gs_memory_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v3)(handle, affinity, count, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_memory_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v4)(handle, parameters, flags, device), handle, device);
}

/*
 * What goes with a context goes first, while it can still be synchronised. Before that, what outlives it: once the
 * mover has left the context (gs_memory_context_ends), nothing may bring it back there.
 */
static void empty(CUcontext handle)
{
    gs_vmm_context_ends(handle);
    gs_memory_context_ends(handle);
    gs_capture_context_ends(handle);
    gs_meter_context_ends(handle);
}

/* The driver destroys no primary context and no green one in this way: what they have stays. */
static bool can_be_destroyed(CUcontext handle)
{
    gs_mutex_lock(&contexts.lock);
    const struct context *context = find_locked(handle);
    bool can = context != NULL && !context->primary && context->parent == NULL;
    gs_mutex_unlock(&contexts.lock);
    return can;
}

/* A context takes its allocations with it: ours go first, while it can still be synchronised. */
static CUresult destroy(CUcontext handle, CUresult (*real)(CUcontext))
{
    if (can_be_destroyed(handle)) {
        empty(handle);
        remove_context(handle);
    }
    return real(handle);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle)
{
    return destroy(handle, GS_REAL(cuCtxDestroy));
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle)
{
    return destroy(handle, GS_REAL(cuCtxDestroy_v2));
}

CUresult CUDAAPI cuCtxAttach(CUcontext *handle, unsigned int flags)
{
    CUresult result = GS_REAL(cuCtxAttach)(handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    gs_mutex_lock(&contexts.lock);
    struct context *context = find_locked(*handle);
    if (context != NULL)
        context->attached++;
    gs_mutex_unlock(&contexts.lock);
    return result;
}

/* The last to detach from a context destroys it. Only the current one can be detached from. */
CUresult CUDAAPI cuCtxDetach(CUcontext handle)
{
    CUcontext current = NULL;
    GS_REAL(cuCtxGetCurrent)(&current);
    gs_mutex_lock(&contexts.lock);
    struct context *context = current == handle ? find_locked(handle) : NULL;
    bool last = context != NULL && !context->primary && context->attached == 0;
    if (context != NULL && context->attached != 0)
        context->attached--;
    gs_mutex_unlock(&contexts.lock);
    return last ? destroy(handle, GS_REAL(cuCtxDetach)) : GS_REAL(cuCtxDetach)(handle);
}

static CUresult retain_primary(CUcontext *handle, CUdevice device)
{
    gs_mutex_lock(&contexts.lock);
    CUresult result = await_primary_locked(device);
    bool first = result == CUDA_SUCCESS && primary_locked(device) == NULL;
    if (first)
        begin_change_locked(device);
    gs_mutex_unlock(&contexts.lock);
    if (first)
        result = gs_memory_admit_context(device);
    bool admitted = first && result == CUDA_SUCCESS, taken = false;
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuDevicePrimaryCtxRetain)(handle, device);
    if (result == CUDA_SUCCESS)
        taken = add(*handle, device, true, admitted);
    if (taken)
        gs_memory_context_begun(device);
    else if (admitted)
        gs_memory_context_gone(device);
    if (first)
        end_change(device, result);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    return retain_primary(handle, device);
}

static CUresult release_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    CUcontext handle = NULL;
    gs_mutex_lock(&contexts.lock);
    await_primary_locked(device);
    struct context *context = primary_locked(device);
    if (context != NULL && context->retained > 1) {
        context->retained--;
    } else if (context != NULL) {
        handle = context->handle;
        begin_change_locked(device);
    }
    gs_mutex_unlock(&contexts.lock);
    if (handle != NULL) {
        empty(handle);
        remove_context(handle);
    }
    CUresult result = real(device);
    if (handle != NULL)
        end_change(device, CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease));
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
}

static bool is_usable(CUcontext handle)
{
    CUcontext ignored;
    return GS_REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS &&
           GS_REAL(cuCtxPopCurrent_v2)(&ignored) == CUDA_SUCCESS;
}

static void mark_ending(CUcontext handle, bool ending)
{
    gs_mutex_lock(&contexts.lock);
    leave_context_locked(handle);
    struct context *context = find_locked(handle);
    if (context != NULL) {
        context->ending = ending;
        context->was_reset = true;
        /* They go with all that the context has. */
        context->event = context->mark = context->probe = NULL;
        context->pending = false;
        forget_failure_locked(context);
    }
    gs_mutex_unlock(&contexts.lock);
}

/* Its context goes with it; memory that was allocated in it stays, since that is the primary context's. */
static void end_green(CUcontext handle)
{
    gs_vmm_context_ends(handle);
    gs_memory_streams_end(handle);
    gs_capture_context_ends(handle);
    gs_meter_context_ends(handle);
    remove_context(handle);
}

static CUcontext green_of(CUcontext primary)
{
    gs_mutex_lock(&contexts.lock);
    const struct context *context = contexts.first;
    while (context != NULL && context->parent != primary)
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    gs_mutex_unlock(&contexts.lock);
    return handle;
}

/* A reset empties the context but leaves it retained: the next use starts it anew, or takes another in its place. */
static CUresult reset_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    gs_mutex_lock(&contexts.lock);
    await_primary_locked(device);
    struct context *context = primary_locked(device);
    CUcontext handle = context != NULL ? context->handle : NULL;
    if (handle != NULL)
        begin_change_locked(device);
    gs_mutex_unlock(&contexts.lock);
    for (CUcontext green; handle != NULL && (green = green_of(handle)) != NULL;)
        end_green(green);
    if (handle != NULL) {
        gs_vmm_context_ends(handle);
        gs_memory_context_ends(handle);
        mark_ending(handle, true);
        __atomic_add_fetch(&contexts.removals, 1, __ATOMIC_RELEASE);
        gs_capture_context_ends(handle);
        gs_meter_context_ends(handle);
    }
    CUresult result = real(device);
    if (handle != NULL && is_usable(handle)) {
        mark_ending(handle, false);
        gs_vmm_context_begins(handle, device);
        gs_memory_context_begins(handle, device);
    } else if (handle != NULL) {
        remove_context(handle);
    }
    if (handle != NULL)
        end_change(device, CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    return reset_primary(device, GS_REAL(cuDevicePrimaryCtxReset));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return reset_primary(device, GS_REAL(cuDevicePrimaryCtxReset_v2));
}

/* --- Contexts that others make: of OpenGL or VDPAU, of green contexts, of libraries that bypass us --- */

static __thread CUcontext seen_last __attribute__((tls_model("initial-exec")));
static __thread uint32_t seen_removals __attribute__((tls_model("initial-exec")));

/* It is drained from now on. Nobody has admitted it: the scheduler sees by itself what it takes. */
static CUresult seen(CUresult result, CUcontext handle)
{
    uint32_t removals = __atomic_load_n(&contexts.removals, __ATOMIC_ACQUIRE);
    if (result != CUDA_SUCCESS || handle == NULL || !gs_session_attached() ||
        (handle == seen_last && removals == seen_removals))
        return result;
    CUcontext ignored;
    CUdevice device;
    if (!gs_context_alive(handle) && GS_REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS) {
        bool known = GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS;
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
        if (known)
            add(handle, device, false, false);
    }
    seen_last = handle;
    seen_removals = removals;
    return result;
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult result = GS_REAL(cuGLCtxCreate)(handle, flags, device);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult result = GS_REAL(cuGLCtxCreate_v2)(handle, flags, device);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device, VdpDevice vdpau,
                                  VdpGetProcAddress *functions)
{
    CUresult result = GS_REAL(cuVDPAUCtxCreate)(handle, flags, device, vdpau, functions);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device, VdpDevice vdpau,
                                     VdpGetProcAddress *functions)
{
    CUresult result = GS_REAL(cuVDPAUCtxCreate_v2)(handle, flags, device, vdpau, functions);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *handle, CUgreenCtx green)
{
    CUresult result = GS_REAL(cuCtxFromGreenCtx)(handle, green);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

/* It keeps the primary context alive. */
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags)
{
    CUcontext primary, handle;
    if (!gs_session_attached())
        return GS_REAL(cuGreenCtxCreate)(green, description, device, flags);
    CUresult result = retain_primary(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuGreenCtxCreate)(green, description, device, flags);
    if (result == CUDA_SUCCESS && GS_REAL(cuCtxFromGreenCtx)(&handle, *green) == CUDA_SUCCESS) {
        add(handle, device, false, false);
        gs_mutex_lock(&contexts.lock);
        struct context *context = find_locked(handle);
        if (context != NULL)
            context->parent = primary;
        gs_mutex_unlock(&contexts.lock);
        if (context != NULL)
            return result;
    }
    release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
    return result;
}

/* Whether it keeps a primary context alive, and of which device. */
static bool is_green(CUcontext handle, CUdevice *device)
{
    gs_mutex_lock(&contexts.lock);
    const struct context *context = find_locked(handle);
    bool green = context != NULL && context->parent != NULL;
    if (green)
        *device = context->device;
    gs_mutex_unlock(&contexts.lock);
    return green;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext handle = NULL;
    CUdevice device;
    bool known = gs_session_attached() && GS_REAL(cuCtxFromGreenCtx)(&handle, green) == CUDA_SUCCESS;
    bool holds = known && is_green(handle, &device);
    if (known && gs_context_alive(handle))
        end_green(handle);
    CUresult result = GS_REAL(cuGreenCtxDestroy)(green);
    if (holds)
        release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
    return result;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle)
{
    return seen(GS_REAL(cuCtxSetCurrent)(handle), handle);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle)
{
    return seen(GS_REAL(cuCtxPushCurrent)(handle), handle);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle)
{
    return seen(GS_REAL(cuCtxPushCurrent_v2)(handle), handle);
}

/* --- Waits for all work of a context: afterwards, nothing has to be asked or waited for until more is submitted --- */

CUresult CUDAAPI cuCtxSynchronize(void)
{
    uint64_t submissions = gs_gate_passes();
    bool empty = gs_gate_empty();
    CUcontext current = NULL;
    CUresult result = GS_REAL(cuCtxSynchronize)();
    if (result == CUDA_SUCCESS && empty && !gs_context_idle(submissions) &&
        GS_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS)
        gs_context_synchronized(current, submissions);
    return result;
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle)
{
    uint64_t submissions = gs_gate_passes();
    bool empty = gs_gate_empty();
    CUresult result = GS_REAL(cuCtxSynchronize_v2)(handle);
    if (result == CUDA_SUCCESS && empty && !gs_context_idle(submissions))
        gs_context_synchronized(handle, submissions);
    return result;
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    gs_meter_forget_functions();
    return GS_REAL(cuModuleUnload)(module);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    gs_meter_forget_functions();
    return GS_REAL(cuLibraryUnload)(library);
}
