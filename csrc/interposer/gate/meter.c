/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/meter.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/pace.h"
#include "gate/slots.h"
#include "gate/work.h"
#include "loader/real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many separate intervals are kept. Time before the oldest of them counts as measured already. */
enum { MOST_STRETCHES = 64 };
/*
 * The driver returns the distance between events as a float in milliseconds. To stay exact, it is measured from an
 * event that is not far away.
 */
static const int64_t farthest_anchor = INT64_C(1000000000);
/*
 * Events cost the application some microseconds each. Short submissions of known length go without events, as long as
 * the last event is at most this old while time is charged. Then one is measured again.
 */
static const uint64_t longest_unmeasured = UINT64_C(250000);
/* Work after the last event counts as done this long after it was submitted. */
static const uint64_t trailing = UINT64_C(1000000);

struct submitted {
    struct submitted *next;
    struct gs_submission submission;
    uint64_t at_ns;
};

struct clock {
    struct clock *next;
    CUcontext context;
    unsigned gpu; /* index of `meter.gpus` */
    CUevent *spare;
    size_t spare_count, spare_room;
    /* The times of a context's events are relative to this one. */
    CUevent anchor;
    int64_t anchor_ns;
    struct stretch {
        int64_t begin, end;
    } counted[MOST_STRETCHES]; /* in order, without overlap */
    unsigned counted_count;
    int64_t counted_until; /* everything before that time has been counted */
};

struct gs_metered_stream {
    struct gs_metered_stream *next;
    struct clock *clock; /* NULL: its context no longer exists */
    CUstream handle;
    const struct gs_slot *thread; /* the thread whose default stream it is, or NULL */
    struct submitted *first, **last;
    int64_t ended_ns;        /* end of the last submission that is done, by the context's clock */
    uint64_t unmeasured_ns;  /* sum of the estimates of what was submitted since the last event */
    uint64_t measured_at_ns; /* when a submission was last measured */
    uint64_t last_at_ns;     /* time of the last submission */
    bool late;               /* other operations than GPU work were queued: the next submission needs a begin event */
    bool gone;               /* the handle may belong to another stream */
    unsigned users;          /* number of threads between gs_meter_begin and gs_meter_end */
};

static struct {
    struct gs_mutex lock;
    struct gs_metered_stream *streams;
    struct clock *clocks;
    struct gpushare_meter gpus[GPUSHARE_MAX_GPUS];
    unsigned gpu_count;
    unsigned in_flight;
    int used; /* read without the lock */
} meter = {.lock = GS_MUTEX(GS_RANK_METER)};

static void fail(const char *call, CUresult result)
{
    if (gs_pace_go_unmeasured())
        gs_print("the GPU time of this process is no longer measured: %s failed with CUDA error %d (reported once)",
                 call, (int)result);
}

/* --- Events --- */

static CUevent take_event(struct clock *clock)
{
    GS_LEAVES_CAPTURES_ALONE;
    if (clock->spare_count != 0)
        return clock->spare[--clock->spare_count];
    CUcontext current = NULL, ignored;
    GS_REAL(cuCtxGetCurrent)(&current);
    CUevent event = NULL;
    CUresult result = current == clock->context ? CUDA_SUCCESS : GS_REAL(cuCtxPushCurrent_v2)(clock->context);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuEventCreate)(&event, CU_EVENT_DEFAULT);
    if (result == CUDA_SUCCESS && current != clock->context)
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    if (result != CUDA_SUCCESS)
        fail("cuEventCreate", result);
    return event;
}

static void return_event(struct clock *clock, CUevent event)
{
    if (event == NULL || clock == NULL)
        return;
    if (clock->spare_count == clock->spare_room) {
        size_t room = clock->spare_room * 2 + 16;
        CUevent *spare = realloc(clock->spare, room * sizeof(*spare));
        if (spare == NULL) {
            GS_REAL(cuEventDestroy_v2)(event);
            return;
        }
        clock->spare = spare;
        clock->spare_room = room;
    }
    clock->spare[clock->spare_count++] = event;
}

/* The time of a completed event by the context's clock, which begins with the first event that is queried. */
static bool time_of(struct clock *clock, CUevent event, int64_t *ns)
{
    GS_LEAVES_CAPTURES_ALONE;
    float milliseconds = 0;
    CUresult result = CUDA_SUCCESS;
    if (clock->anchor != NULL)
        result = GS_REAL(cuEventElapsedTime)(&milliseconds, clock->anchor, event);
    if (result != CUDA_SUCCESS) {
        fail("cuEventElapsedTime", result);
        return false;
    }
    *ns = clock->anchor_ns + (int64_t)((double)milliseconds * 1e6);
    return true;
}

/* --- The union --- */

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Counts an interval, and returns how much of it was not counted before. */
static int64_t count(struct clock *clock, int64_t begin, int64_t end)
{
    struct stretch *all = clock->counted;
    begin = greater(begin, clock->counted_until);
    if (end <= begin)
        return 0;
    struct stretch whole = {begin, end};
    int64_t fresh = end - begin;
    unsigned i = 0;
    while (i < clock->counted_count && all[i].end < begin)
        i++;
    unsigned after = i;
    for (; after < clock->counted_count && all[after].begin <= end; after++) {
        fresh -= lesser(end, all[after].end) - greater(begin, all[after].begin);
        whole.begin = lesser(whole.begin, all[after].begin);
        whole.end = greater(whole.end, all[after].end);
    }
    if (after == i && clock->counted_count == MOST_STRETCHES) {
        if (i == 0) {
            clock->counted_until = end;
            return fresh;
        }
        clock->counted_until = all[0].end;
        memmove(all, all + 1, --clock->counted_count * sizeof(*all));
        after = --i;
    }
    memmove(all + i + 1, all + after, (clock->counted_count - after) * sizeof(*all));
    all[i] = whole;
    clock->counted_count = clock->counted_count - after + i + 1;
    return fresh;
}

/* --- Completed work --- */

static void drop(struct gs_metered_stream *stream)
{
    struct submitted *done = stream->first;
    stream->first = done->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    __atomic_sub_fetch(&meter.in_flight, 1, __ATOMIC_RELAXED);
    gs_pace_return(&done->submission, stream->first != NULL ? &stream->first->submission : NULL);
    return_event(stream->clock, done->submission.begin);
    return_event(stream->clock, done->submission.end);
    free(done);
}

/* Makes a completed event, which is about to be returned, the anchor if the current one is far away. */
static void move_anchor(struct clock *clock, CUevent *event, int64_t at_ns)
{
    if (clock->anchor != NULL && at_ns - clock->anchor_ns <= farthest_anchor)
        return;
    CUevent before = clock->anchor;
    clock->anchor = *event;
    clock->anchor_ns = at_ns;
    *event = before;
}

static void charge(struct clock *clock, int64_t ns)
{
    meter.gpus[clock->gpu].busy_ns += (uint64_t)ns;
    gs_pace_charge((uint64_t)ns);
}

/* The oldest submission is done. The submissions before it that had no events took about `before`. */
static void settle(struct gs_metered_stream *stream, int64_t before)
{
    struct clock *clock = stream->clock;
    struct gs_submission *done = &stream->first->submission;
    int64_t begin = stream->ended_ns, end;
    if (done->begin != NULL) {
        if (!time_of(clock, done->begin, &begin))
            return;
        if (before != 0)
            charge(clock,
                   stream->ended_ns == INT64_MIN ? before : lesser(before, greater(0, begin - stream->ended_ns)));
        move_anchor(clock, &done->begin, begin);
    }
    if (!time_of(clock, done->end, &end))
        return;
    begin = greater(begin, stream->ended_ns);
    end = greater(begin, end);
    stream->ended_ns = end;
    if (done->charged)
        charge(clock, count(clock, begin, end));
    if (done->learns)
        gs_pace_learn(done, (uint64_t)(end - begin));
    move_anchor(clock, &done->end, end);
}

/* True if a submission of the stream is done. */
static bool look(struct gs_metered_stream *stream)
{
    GS_LEAVES_CAPTURES_ALONE;
    bool changed = false;
    while (stream->first != NULL) {
        bool measures = stream->clock != NULL && !gs_pace_unmeasured();
        const struct submitted *measured = stream->first;
        while (measured != NULL && measured->submission.end == NULL)
            measured = measured->next;
        if (measures && measured == NULL && gs_now_ns() - stream->last_at_ns < trailing)
            break;
        CUresult result = measures && measured != NULL ? GS_REAL(cuEventQuery)(measured->submission.end) : CUDA_SUCCESS;
        if (result == CUDA_ERROR_NOT_READY)
            break;
        int64_t before = 0;
        for (; stream->first != measured; drop(stream))
            if (stream->first->submission.charged)
                before += (int64_t)stream->first->submission.estimate_ns;
        changed = true;
        if (measured == NULL) {
            if (measures)
                charge(stream->clock, before);
            stream->unmeasured_ns = 0;
            break;
        }
        if (result != CUDA_SUCCESS)
            fail("cuEventQuery", result);
        else if (measures)
            settle(stream, before);
        drop(stream);
    }
    return changed;
}

static bool look_at_all(void)
{
    bool changed = false;
    struct gs_metered_stream **link = &meter.streams;
    while (*link != NULL) {
        struct gs_metered_stream *stream = *link;
        changed = look(stream) || changed;
        if (stream->gone && stream->first == NULL && stream->users == 0) {
            *link = stream->next;
            free(stream);
        } else {
            link = &stream->next;
        }
    }
    return changed;
}

bool gs_meter_look(void)
{
    if (gs_meter_in_flight() == 0 || !gs_capture_forbid())
        return false;
    gs_mutex_lock(&meter.lock);
    bool changed = look_at_all();
    gs_mutex_unlock(&meter.lock);
    gs_capture_allow();
    return changed;
}

/* The helper thread may query events also while other threads capture. */
void gs_meter_look_from_helper(void)
{
    if (gs_meter_in_flight() == 0)
        return;
    gs_mutex_lock(&meter.lock);
    look_at_all();
    gs_mutex_unlock(&meter.lock);
}

unsigned gs_meter_in_flight(void)
{
    return __atomic_load_n(&meter.in_flight, __ATOMIC_RELAXED);
}

unsigned gs_meter_read(struct gpushare_meter meters[GPUSHARE_MAX_GPUS])
{
    gs_mutex_lock(&meter.lock);
    unsigned gpus = meter.gpu_count;
    memcpy(meters, meter.gpus, gpus * sizeof(*meters));
    gs_mutex_unlock(&meter.lock);
    return gpus;
}

void gs_meter_restart(void)
{
    gs_mutex_lock(&meter.lock);
    for (unsigned i = 0; i < meter.gpu_count; i++)
        meter.gpus[i].busy_ns = meter.gpus[i].submissions = 0;
    gs_mutex_unlock(&meter.lock);
}

void gs_meter_moved(const uint8_t from[16], const uint8_t to[16])
{
    gs_mutex_lock(&meter.lock);
    for (unsigned i = 0; i < meter.gpu_count; i++) {
        uint8_t *gpu = meter.gpus[i].gpu;
        if (memcmp(gpu, from, sizeof(meter.gpus[i].gpu)) == 0)
            memcpy(gpu, to, sizeof(meter.gpus[i].gpu));
        else if (memcmp(gpu, to, sizeof(meter.gpus[i].gpu)) == 0)
            memcpy(gpu, from, sizeof(meter.gpus[i].gpu));
    }
    gs_mutex_unlock(&meter.lock);
}

/* --- Streams --- */

static unsigned gpu_of(CUdevice ordinal)
{
    CUuuid uuid;
    if (GS_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS)
        return GPUSHARE_MAX_GPUS;
    unsigned i = 0;
    while (i < meter.gpu_count && memcmp(meter.gpus[i].gpu, uuid.bytes, sizeof(uuid.bytes)) != 0)
        i++;
    if (i == meter.gpu_count && i < GPUSHARE_MAX_GPUS)
        memcpy(meter.gpus[meter.gpu_count++].gpu, uuid.bytes, sizeof(uuid.bytes));
    return i;
}

/* NULL: the end of this context would not be noticed. */
static struct clock *clock_of(CUcontext context)
{
    for (struct clock *clock = meter.clocks; clock != NULL; clock = clock->next)
        if (clock->context == context)
            return clock;
    CUcontext current = NULL, ignored;
    CUdevice ordinal;
    GS_REAL(cuCtxGetCurrent)(&current);
    if (context == NULL || !gs_context_alive(context) ||
        (current != context && GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS))
        return NULL;
    CUresult result = GS_REAL(cuCtxGetDevice)(&ordinal);
    if (current != context)
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    unsigned gpu = result == CUDA_SUCCESS ? gpu_of(ordinal) : GPUSHARE_MAX_GPUS;
    struct clock *clock = gpu < GPUSHARE_MAX_GPUS ? calloc(1, sizeof(*clock)) : NULL;
    if (clock == NULL)
        return NULL;
    clock->context = context;
    clock->gpu = gpu;
    clock->counted_until = INT64_MIN;
    clock->next = meter.clocks;
    meter.clocks = clock;
    return clock;
}

static bool takes_thread_stream(enum gs_stream_kind kind)
{
    return kind == GS_STREAM_PTSZ || kind == GS_STREAM_NONE_PTDS;
}

/* Finds the handle, context and thread of a stream. A default stream belongs to the current context. */
static struct gs_metered_stream name_of(CUstream handle, enum gs_stream_kind kind, CUcontext *context)
{
    struct gs_metered_stream name = {.handle = handle};
    *context = NULL;
    if (handle == NULL)
        name.handle = takes_thread_stream(kind) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (name.handle == CU_STREAM_PER_THREAD)
        name.thread = gs_gate_thread;
    if (name.handle == CU_STREAM_PER_THREAD || name.handle == CU_STREAM_LEGACY)
        GS_REAL(cuCtxGetCurrent)(context);
    return name;
}

static struct gs_metered_stream *find(CUstream handle, enum gs_stream_kind kind, bool make)
{
    CUcontext context;
    struct gs_metered_stream name = name_of(handle, kind, &context);
    for (struct gs_metered_stream *stream = meter.streams; stream != NULL; stream = stream->next)
        if (!stream->gone && stream->handle == name.handle && stream->thread == name.thread &&
            (context == NULL || stream->clock->context == context))
            return stream;
    if (!make || (context == NULL && GS_REAL(cuStreamGetCtx)(handle, &context) != CUDA_SUCCESS))
        return NULL;
    name.clock = clock_of(context);
    struct gs_metered_stream *stream = name.clock != NULL ? malloc(sizeof(*stream)) : NULL;
    if (stream == NULL)
        return NULL;
    *stream = name;
    stream->ended_ns = INT64_MIN;
    stream->last = &stream->first;
    stream->next = meter.streams;
    meter.streams = stream;
    return stream;
}

static CUresult record(CUevent event, const struct gs_submission *submission)
{
    return takes_thread_stream(submission->kind) ? GS_REAL(cuEventRecord_ptsz)(event, submission->stream)
                                                 : GS_REAL(cuEventRecord)(event, submission->stream);
}

/* --- Around a submission --- */

/* Counts the submission as unmeasured, if that is permitted. */
static bool may_go_unmeasured(struct gs_metered_stream *stream, const struct gs_submission *submission)
{
    if (submission->learns || submission->estimate_ns + stream->unmeasured_ns > submission->most_unmeasured_ns ||
        (submission->charged && gs_now_ns() - stream->measured_at_ns > longest_unmeasured))
        return false;
    stream->unmeasured_ns += submission->estimate_ns;
    return true;
}

void gs_meter_begin(struct gs_submission *submission)
{
    /* No capture may begin meanwhile: a query of an event could invalidate it, or it could capture the event. */
    if (gs_pace_unmeasured() || !gs_capture_forbid())
        return;
    __atomic_store_n(&meter.used, 1, __ATOMIC_RELAXED);
    gs_mutex_lock(&meter.lock);
    struct gs_metered_stream *stream = find(submission->stream, submission->kind, true);
    if (stream != NULL) {
        if (!may_go_unmeasured(stream, submission)) {
            look(stream);
            submission->end = take_event(stream->clock);
            bool follows = stream->first != NULL && !stream->late && stream->unmeasured_ns == 0;
            if (submission->end != NULL && !follows && (submission->learns || submission->charged))
                submission->begin = take_event(stream->clock);
            submission->learns = follows || submission->begin != NULL;
            stream->unmeasured_ns = 0;
            stream->measured_at_ns = gs_now_ns();
            stream->late = false;
        }
        if (!gs_pace_unmeasured()) {
            submission->measured = stream;
            stream->users++;
        }
    }
    gs_mutex_unlock(&meter.lock);
    /* Called without meter.lock, because this call waits for the GPU if its queue is full. */
    CUresult result = submission->begin != NULL ? record(submission->begin, submission) : CUDA_SUCCESS;
    gs_capture_allow();
    if (result != CUDA_SUCCESS)
        fail("cuEventRecord", result);
}

void gs_meter_end(struct gs_submission *submission)
{
    struct gs_metered_stream *stream = submission->measured;
    if (stream == NULL) {
        gs_pace_return(submission, NULL);
        return;
    }
    bool recorded = submission->end == NULL;
    if (!recorded && !gs_pace_unmeasured() && gs_capture_forbid()) {
        CUresult result = record(submission->end, submission);
        gs_capture_allow();
        recorded = result == CUDA_SUCCESS;
        if (!recorded)
            fail("cuEventRecord", result);
    }
    struct submitted *submitted = recorded ? malloc(sizeof(*submitted)) : NULL;
    gs_mutex_lock(&meter.lock);
    stream->users--;
    if (submitted != NULL && stream->clock != NULL) {
        *submitted = (struct submitted){.submission = *submission, .at_ns = gs_now_ns()};
        stream->last_at_ns = submitted->at_ns;
        *stream->last = submitted;
        stream->last = &submitted->next;
        __atomic_add_fetch(&meter.in_flight, 1, __ATOMIC_RELAXED);
        meter.gpus[stream->clock->gpu].submissions++;
    } else {
        return_event(stream->clock, submission->begin);
        return_event(stream->clock, submission->end);
        gs_pace_return(submission, NULL);
        stream->late = true;
        free(submitted);
    }
    gs_mutex_unlock(&meter.lock);
}

void gs_meter_order(CUstream handle, enum gs_stream_kind kind)
{
    if (!__atomic_load_n(&meter.used, __ATOMIC_RELAXED))
        return;
    gs_mutex_lock(&meter.lock);
    struct gs_metered_stream *stream = find(handle, kind, false);
    if (stream != NULL)
        stream->late = true;
    gs_mutex_unlock(&meter.lock);
}

/* --- Names --- */

static void describe(uintptr_t work, char name[112])
{
    static const char *const kinds[GS_WORK_KINDS] = {
        [GS_WORK_NONE] = "unknown", [GS_WORK_ORDER] = "unknown",     [GS_WORK_COPY] = "copy",
        [GS_WORK_FILL] = "fill",    [GS_WORK_PREFETCH] = "prefetch", [GS_WORK_KERNEL] = "kernel",
        [GS_WORK_OTHER] = "other",
    };
    const char *text = work < GS_WORK_KINDS ? kinds[work] : gs_work_is_graph(work) ? "graph" : NULL;
    /* A CUDA kernel may be launched by either handle. */
    if (text == NULL &&
        (!gs_real_has(GS_FN_cuFuncGetName) || GS_REAL(cuFuncGetName)(&text, (CUfunction)work) != CUDA_SUCCESS ||
         text == NULL) &&
        (!gs_real_has(GS_FN_cuKernelGetName) || GS_REAL(cuKernelGetName)(&text, (CUkernel)work) != CUDA_SUCCESS ||
         text == NULL))
        text = "kernel";
    snprintf(name, 112, "%s", text);
}

void gs_meter_running(char name[112], uint64_t *since)
{
    gs_mutex_lock(&meter.lock);
    look_at_all();
    const struct submitted *oldest = NULL;
    for (struct gs_metered_stream *stream = meter.streams; stream != NULL; stream = stream->next)
        if (stream->first != NULL && (oldest == NULL || stream->first->at_ns < oldest->at_ns))
            oldest = stream->first;
    if (oldest != NULL)
        *since = oldest->at_ns;
    describe(oldest != NULL ? oldest->submission.work : gs_gate_last_work(), name);
    gs_mutex_unlock(&meter.lock);
}

/* --- Ends --- */

void gs_meter_forget_functions(void)
{
    /* Under the lock, no thread is asking for a name. */
    gs_mutex_lock(&meter.lock);
    gs_gate_forget_functions();
    for (struct gs_metered_stream *stream = meter.streams; stream != NULL; stream = stream->next)
        for (struct submitted *submitted = stream->first; submitted != NULL; submitted = submitted->next)
            if (gs_work_is_function(submitted->submission.work))
                submitted->submission.work = GS_WORK_KERNEL;
    gs_mutex_unlock(&meter.lock);
}

void gs_meter_stream_ends(CUstream handle)
{
    if (!__atomic_load_n(&meter.used, __ATOMIC_RELAXED))
        return;
    gs_mutex_lock(&meter.lock);
    for (struct gs_metered_stream *stream = meter.streams; stream != NULL; stream = stream->next)
        stream->gone = stream->gone || stream->handle == handle;
    gs_mutex_unlock(&meter.lock);
}

/* The end of the context destroys its events. */
void gs_meter_context_ends(CUcontext context)
{
    gs_meter_forget_functions();
    gs_mutex_lock(&meter.lock);
    struct clock **link = &meter.clocks;
    while (*link != NULL && (*link)->context != context)
        link = &(*link)->next;
    struct clock *clock = *link;
    if (clock != NULL) {
        *link = clock->next;
        for (struct gs_metered_stream *stream = meter.streams; stream != NULL; stream = stream->next) {
            if (stream->clock != clock)
                continue;
            stream->clock = NULL;
            stream->gone = true;
        }
        look_at_all();
        free(clock->spare);
        free(clock);
    }
    gs_mutex_unlock(&meter.lock);
}

void gs_meter_after_fork(void)
{
    gs_mutex_after_fork(&meter.lock);
}
