/* SPDX-License-Identifier: BSD-3-Clause */
#include "counters.h"

#include "base/clock.h"
#include "segment/engines.h"

#include <string.h>

struct sim_counters sim_counters_now;

void gpushare_sim_counters(struct sim_counters *counters, size_t size)
{
    memcpy(counters, &sim_counters_now, size < sizeof *counters ? size : sizeof *counters);
}

static void count(uint64_t *counter, uint64_t bytes)
{
    __atomic_add_fetch(counter, bytes, __ATOMIC_RELAXED);
}

uint64_t sim_engine_use(unsigned device, enum sim_engine engine, uint64_t bytes, uint64_t bandwidth)
{
    uint64_t duration = sim_duration(bytes, bandwidth);
    if (engine == SIM_ENGINE_TO_DEVICE)
        count(&sim_counters_now.in_ns, duration);
    else if (engine == SIM_ENGINE_TO_HOST)
        count(&sim_counters_now.out_ns, duration);
    else
        count(&sim_counters_now.fault_ns, duration);
    return sim_segment_reserve(device, engine, duration);
}
