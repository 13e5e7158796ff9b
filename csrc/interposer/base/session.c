/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/session.h"

#include "base/print.h"

#include <stddef.h>

static struct {
    int attachment; /* enum gs_attachment */
    const char *why_not;
    bool fork_unreported; /* this is the child of a process that had used CUDA, and the user was not told */
    uint32_t contended;
    uint64_t cap;
} session;

static const char forked[] = "this process was forked from one that had already used CUDA";

enum gs_attachment gs_session_attachment(void)
{
    return (enum gs_attachment)__atomic_load_n(&session.attachment, __ATOMIC_ACQUIRE);
}

bool gs_session_attached(void)
{
    return gs_session_attachment() == GS_ATTACHED;
}

const char *gs_session_why_not(void)
{
    return session.why_not;
}

void gs_session_report_fork(void)
{
    if (__builtin_expect(__atomic_load_n(&session.fork_unreported, __ATOMIC_RELAXED), 0) &&
        __atomic_exchange_n(&session.fork_unreported, false, __ATOMIC_RELAXED))
        gs_print("%s, so CUDA does not work in it. Use the start method \"spawn\" of multiprocessing", forked);
}

uint32_t gs_session_contended(void)
{
    return __atomic_load_n(&session.contended, __ATOMIC_RELAXED);
}

uint64_t gs_session_cap(void)
{
    return session.cap;
}

void gs_session_attach(void)
{
    __atomic_store_n(&session.attachment, GS_ATTACHED, __ATOMIC_RELEASE);
}

void gs_session_step_aside(const char *why)
{
    session.why_not = why;
    __atomic_store_n(&session.attachment, GS_OUT_OF_THE_WAY, __ATOMIC_RELEASE);
}

void gs_session_set_contended(uint32_t groups)
{
    __atomic_store_n(&session.contended, groups, __ATOMIC_RELAXED);
}

void gs_session_set_cap(uint64_t bytes)
{
    session.cap = bytes;
}

void gs_session_after_fork(bool begun)
{
    if (session.attachment == GS_ATTACHED || (session.attachment == GS_NOT_ATTACHED_YET && begun))
        gs_session_step_aside(forked);
    session.fork_unreported = session.why_not == forked;
}
