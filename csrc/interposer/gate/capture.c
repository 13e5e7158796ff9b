/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/capture.h"

#include "base/lock.h"
#include "loader/real.h"

#include <pthread.h>
#include <stdlib.h>

struct gs_capture {
    CUstream stream; /* where it began; NULL: its thread's default stream */
    pthread_t thread;
    CUcontext context;
    bool broken; /* the interposer invalidated it; the application has yet to end it */
    struct gs_capture *next;
};

static struct {
    struct gs_mutex lock;
    struct gs_capture *first;
    int count; /* read without the lock */
    int open;  /* captures that are not broken; read without the lock */
} captures = {.lock = GS_MUTEX(GS_RANK_CAPTURES)};

/*
 * Held for writing while a capture begins, and for reading while none may begin. The helper never waits for a thread
 * that is synchronising.
 */
static struct gs_rwlock beginning = GS_RWLOCK(GS_RANK_BEGINNING);

bool gs_capture_open(void)
{
    return __atomic_load_n(&captures.open, __ATOMIC_ACQUIRE) > 0;
}

bool gs_capture_own(void)
{
    bool own = false;
    if (!gs_capture_open())
        return false;
    gs_mutex_lock(&captures.lock);
    for (const struct gs_capture *capture = captures.first; capture != NULL && !own; capture = capture->next)
        own = !capture->broken && pthread_equal(capture->thread, pthread_self());
    gs_mutex_unlock(&captures.lock);
    return own;
}

static bool is_capturing(CUstream stream, enum gs_stream_kind kind)
{
    if (kind >= GS_STREAM_NONE)
        return false;
    /*
     * A query of the legacy stream while another stream captures would invalidate that capture. The legacy stream never
     * captures.
     */
    if (kind == GS_STREAM_LEGACY && (stream == NULL || stream == CU_STREAM_LEGACY))
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = kind == GS_STREAM_PTSZ ? GS_REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                             : GS_REAL(cuStreamIsCapturing)(stream, &status);
    /* The driver refuses what is added to an invalidated capture, and it must not be run instead. */
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind)
{
    return gs_capture_open() && is_capturing(stream, kind);
}

bool gs_capture_holds(CUstream stream, enum gs_stream_kind kind)
{
    return __atomic_load_n(&captures.count, __ATOMIC_ACQUIRE) != 0 && is_capturing(stream, kind);
}

bool gs_capture_forbid(void)
{
    gs_rwlock_rdlock(&beginning);
    if (!gs_capture_open())
        return true;
    gs_rwlock_unlock(&beginning);
    return false;
}

void gs_capture_allow(void)
{
    gs_rwlock_unlock(&beginning);
}

void gs_capture_exchange_mode(CUstreamCaptureMode *mode)
{
    GS_REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

void gs_capture_forget(void)
{
    gs_mutex_lock(&captures.lock);
    for (struct gs_capture *capture = captures.first; capture != NULL; capture = capture->next)
        capture->broken = true;
    __atomic_store_n(&captures.open, 0, __ATOMIC_RELEASE);
    gs_mutex_unlock(&captures.lock);
}

void gs_capture_after_fork(void)
{
    gs_rwlock_after_fork(&beginning);
    gs_mutex_after_fork(&captures.lock);
}

static bool began_in(const struct gs_capture *capture, CUstream stream)
{
    return capture->stream == stream && (stream != NULL || pthread_equal(capture->thread, pthread_self()));
}

bool gs_capture_over(CUstream stream, CUcontext context)
{
    struct gs_capture *gone = NULL;
    gs_mutex_lock(&captures.lock);
    for (struct gs_capture **link = &captures.first; *link != NULL;) {
        struct gs_capture *capture = *link;
        if (context != NULL ? capture->context != context : !began_in(capture, stream)) {
            link = &capture->next;
            continue;
        }
        if (!capture->broken)
            __atomic_sub_fetch(&captures.open, 1, __ATOMIC_ACQ_REL);
        __atomic_sub_fetch(&captures.count, 1, __ATOMIC_ACQ_REL);
        *link = capture->next;
        capture->next = gone;
        gone = capture;
    }
    gs_mutex_unlock(&captures.lock);
    bool any = gone != NULL;
    while (gone != NULL) {
        struct gs_capture *next = gone->next;
        free(gone);
        gone = next;
    }
    return any;
}

struct gs_capture *gs_capture_new(void)
{
    return calloc(1, sizeof(struct gs_capture));
}

void gs_capture_begin(void)
{
    gs_rwlock_wrlock(&beginning);
}

void gs_capture_begun(struct gs_capture *capture, CUstream stream, bool success)
{
    if (success) {
        *capture = (struct gs_capture){.stream = stream, .thread = pthread_self()};
        GS_REAL(cuCtxGetCurrent)(&capture->context);
        gs_mutex_lock(&captures.lock);
        capture->next = captures.first;
        captures.first = capture;
        __atomic_add_fetch(&captures.count, 1, __ATOMIC_ACQ_REL);
        __atomic_add_fetch(&captures.open, 1, __ATOMIC_ACQ_REL);
        gs_mutex_unlock(&captures.lock);
    } else {
        free(capture);
    }
    gs_rwlock_unlock(&beginning);
}
