/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/helper.h"

#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int calls = -1;

void gs_helper_call(void)
{
    uint64_t one = 1;
    ssize_t ignored = write(calls, &one, sizeof(one));
    (void)ignored;
}

void gs_helper_prepare(void)
{
    calls = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

int gs_helper_calls(void)
{
    return calls;
}

void gs_helper_take_calls(void)
{
    uint64_t count;
    ssize_t ignored = read(calls, &count, sizeof(count));
    (void)ignored;
}

void gs_helper_after_fork(void)
{
    if (calls >= 0)
        close(calls);
    calls = -1;
}
