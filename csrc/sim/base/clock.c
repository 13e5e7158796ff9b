/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

uint64_t sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void sim_sleep_until(uint64_t deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
                          .tv_nsec = (long)(deadline % UINT64_C(1000000000))};
    while (sim_now() < deadline && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        continue;
}

uint64_t sim_duration(uint64_t bytes, uint64_t bandwidth)
{
    return (uint64_t)((double)bytes * 1e9 / (double)bandwidth);
}
