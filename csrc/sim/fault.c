/* SPDX-License-Identifier: BSD-3-Clause */
#include "fault.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

static const int signals[] = {SIGSEGV, SIGBUS};
static struct sigaction previous[sizeof signals / sizeof signals[0]];
static __thread sigjmp_buf *guard __attribute__((tls_model("initial-exec")));

/* Odd while memory is inaccessible. */
static unsigned pauses;
static __thread unsigned pauses_seen __attribute__((tls_model("initial-exec")));

void sim_fault_pause(void)
{
    __atomic_add_fetch(&pauses, 1, __ATOMIC_SEQ_CST);
}

void sim_fault_resume(void)
{
    __atomic_add_fetch(&pauses, 1, __ATOMIC_SEQ_CST);
}

/* The fault may have happened in a pause, even in one that is over by now. A real fault happens again, once. */
static bool is_to_be_tried_again(void)
{
    unsigned now;
    while ((now = __atomic_load_n(&pauses, __ATOMIC_SEQ_CST)) % 2 != 0)
        sched_yield();
    bool again = now != pauses_seen;
    pauses_seen = now;
    return again;
}

static void chain(int number, siginfo_t *info, void *machine)
{
    const struct sigaction *old = &previous[number == signals[0] ? 0 : 1];
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(number, info, machine);
    } else if (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN) {
        /* Returning repeats the instruction, now with the default action. */
        signal(number, SIG_DFL);
    } else {
        old->sa_handler(number);
    }
}

static void handle(int number, siginfo_t *info, void *machine)
{
    if (guard == NULL) {
        chain(number, info, machine);
        return;
    }
    if (is_to_be_tried_again())
        return;
    if (sim_config.abort_on_fault)
        abort();
    siglongjmp(*guard, 1);
}

void sim_fault_init(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, &previous[i]);
}

CUresult sim_fault_guard(void (*work)(void *argument), void *argument)
{
    sigjmp_buf here;
    if (sigsetjmp(here, 0) != 0) {
        guard = NULL;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    guard = &here;
    work(argument);
    guard = NULL;
    return CUDA_SUCCESS;
}
