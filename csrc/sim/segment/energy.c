/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/energy.h"

#include "base/clock.h"

uint64_t sim_energy_idle_watts(const struct sim_segment *segment, unsigned machine)
{
    for (const struct sim_record *record = segment->records; record < segment->records + SIM_MAX_RECORDS; record++)
        if (record->pid != 0 && record->charged[machine][SIM_CHARGE_CONTEXT] > 0)
            return segment->watts[SIM_POWER_CONTEXT];
    return segment->watts[SIM_POWER_BARE];
}

void sim_energy_advance(struct sim_segment *segment, unsigned machine)
{
    struct sim_segment_device *d = &segment->device[machine];
    uint64_t now = sim_now(), busy = __atomic_load_n(&d->busy_ns, __ATOMIC_RELAXED);
    /* The first reading begins the account. */
    uint64_t span = d->energy_at == 0 ? 0 : now - d->energy_at;
    uint64_t ran = busy - d->energy_busy_ns;
    if (ran > span)
        ran = span; /* the rest counts the next time */
    /* A watt is a nanojoule in a nanosecond. */
    d->energy_nj += (span - ran) * sim_energy_idle_watts(segment, machine);
    d->energy_nj += ran * segment->watts[SIM_POWER_BUSY];
    d->energy_busy_ns = d->energy_at == 0 ? busy : d->energy_busy_ns + ran;
    d->energy_at = now;
}

void sim_energy_advance_all(struct sim_segment *segment)
{
    for (unsigned machine = 0; machine < segment->devices; machine++)
        sim_energy_advance(segment, machine);
}
