/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/clock.h"

#include <time.h>

uint64_t gs_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * GS_SECOND + (uint64_t)now.tv_nsec;
}
