/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/power.h"

#include "segment/devices.h"
#include "segment/energy.h"
#include "segment/record.h"

/* A shorter time has too few of the pieces in which kernels run. */
#define LEAST_SPAN UINT64_C(20000000)

uint64_t sim_segment_energy_mj(unsigned device)
{
    device = sim_segment_machine(device);
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    sim_energy_advance(sim_segment, device);
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
    sim_energy_advance(sim_segment, device);
    uint64_t span = d->energy_at - d->power_at;
    if (d->power_at == 0 || span >= LEAST_SPAN) {
        uint64_t spent = d->energy_nj - d->power_energy_nj;
        /* The first reading has no span, so it shows the power without kernels. */
        d->power_mw = d->power_at == 0 ? sim_energy_idle_watts(sim_segment, device) * 1000 : spent * 1000 / span;
        d->power_at = d->energy_at;
        d->power_energy_nj = d->energy_nj;
    }
    unsigned power = (unsigned)d->power_mw;
    pthread_mutex_unlock(&sim_segment->lock);
    return power;
}
