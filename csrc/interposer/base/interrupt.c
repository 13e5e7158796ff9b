/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/interrupt.h"

#include "base/helper.h"
#include "base/session.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sigaction application;
static uint32_t expected;    /* a thread is waiting before the process is attached */
static uint32_t interrupted; /* since the last gs_interrupt_take */

/* Async-signal-safe. */
static void interrupt(void)
{
    int saved = errno;
    if (gs_session_attached() || __atomic_load_n(&expected, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&interrupted, 1, __ATOMIC_SEQ_CST);
        gs_helper_call();
    }
    errno = saved;
}

static void on_sigint(int number, siginfo_t *info, void *context)
{
    interrupt();
    if (application.sa_flags & SA_SIGINFO)
        application.sa_sigaction(number, info, context);
    else
        application.sa_handler(number);
}

static int in_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

static int is_own_handler(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_sigint;
}

void gs_interrupt_watch(void)
{
    struct sigaction present;
    if (!in_main_thread() || sigaction(SIGINT, NULL, &present) != 0 || is_own_handler(&present))
        return;
    if (!(present.sa_flags & SA_SIGINFO) && (present.sa_handler == SIG_DFL || present.sa_handler == SIG_IGN))
        return;
    application = present;
    struct sigaction wrapped = present;
    wrapped.sa_flags |= SA_SIGINFO;
    wrapped.sa_sigaction = on_sigint;
    sigaction(SIGINT, &wrapped, NULL);
}

void gs_interrupt_unwatch(void)
{
    struct sigaction present;
    if (in_main_thread() && sigaction(SIGINT, NULL, &present) == 0 && is_own_handler(&present))
        sigaction(SIGINT, &application, NULL);
}

void gs_interrupt_expect(bool on)
{
    __atomic_store_n(&expected, on, __ATOMIC_SEQ_CST);
}

bool gs_interrupt_take(void)
{
    return __atomic_exchange_n(&interrupted, 0, __ATOMIC_SEQ_CST) != 0;
}
