/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/energy.h"

#include "base/clock.h"
#include "segment/devices.h"
#include "segment/record.h"

/* A shorter time has too few of the pieces in which kernels run. */
#define LEAST_SPAN UINT64_C(20000000)

static bool has_context(unsigned machine)
{
    for (const struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS;
         record++)
        if (record->pid != 0 && record->charged[machine][SIM_CHARGE_CONTEXT] > 0)
            return true;
    return false;
}

void sim_energy_advance(unsigned machine)
{
    struct sim_segment_device *d = &sim_segment->device[machine];
    const uint64_t *watts = sim_segment->watts;
    uint64_t now = sim_now(), busy = __atomic_load_n(&d->busy_ns, __ATOMIC_RELAXED);
    /* The first reading begins the account. */
    uint64_t span = d->energy_at == 0 ? 0 : now - d->energy_at;
    uint64_t ran = busy - d->energy_busy_ns;
    if (ran > span)
        ran = span; /* the rest counts the next time */
    /* A watt is a nanojoule in a nanosecond. */
    d->energy_nj += (span - ran) * watts[has_context(machine) ? SIM_POWER_CONTEXT : SIM_POWER_BARE];
    d->energy_nj += ran * watts[SIM_POWER_BUSY];
    d->energy_busy_ns = d->energy_at == 0 ? busy : d->energy_busy_ns + ran;
    d->energy_at = now;
}

void sim_energy_advance_all(void)
{
    for (unsigned machine = 0; machine < sim_segment->devices; machine++)
        sim_energy_advance(machine);
}

uint64_t sim_segment_energy_mj(unsigned device)
{
    device = sim_segment_machine(device);
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    sim_energy_advance(device);
    uint64_t energy = sim_segment->device[device].energy_nj / 1000000;
    pthread_mutex_unlock(&sim_segment->lock);
    return energy;
}

unsigned sim_segment_power_mw(unsigned device)
{
    device = sim_segment_machine(device);
    struct sim_segment_device *d = &sim_segment->device[device];
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    sim_energy_advance(device);
    uint64_t span = d->energy_at - d->power_at;
    if (d->power_at == 0 || span >= LEAST_SPAN) {
        uint64_t spent = d->energy_nj - d->power_energy_nj;
        /* Before there is a span, it is what the device takes without kernels. */
        d->power_mw = d->power_at == 0
                          ? sim_segment->watts[has_context(device) ? SIM_POWER_CONTEXT : SIM_POWER_BARE] * 1000
                          : spent * 1000 / span;
        d->power_at = d->energy_at;
        d->power_energy_nj = d->energy_nj;
    }
    unsigned power = (unsigned)d->power_mw;
    pthread_mutex_unlock(&sim_segment->lock);
    return power;
}
