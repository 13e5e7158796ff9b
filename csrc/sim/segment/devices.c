/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/devices.h"

#include "segment/record.h"

#include <string.h>

static bool chooses;
static unsigned chosen[SIM_MAX_DEVICES], chosen_count;
static unsigned first_gpu[SIM_MAX_DEVICES];

unsigned sim_segment_devices(void)
{
    return chooses ? chosen_count : (unsigned)sim_segment->devices;
}

unsigned sim_segment_machine(unsigned device)
{
    return chooses ? chosen[device] : device;
}

bool sim_segment_seen(unsigned machine, unsigned *device)
{
    for (*device = 0; *device < sim_segment_devices(); ++*device)
        if (sim_segment_machine(*device) == machine)
            return true;
    return false;
}

const struct sim_unit *sim_segment_unit(unsigned device)
{
    return &sim_segment->unit[sim_segment_machine(device)];
}

void sim_segment_choose(const unsigned *machine, unsigned count)
{
    chooses = true;
    chosen_count = count;
    memcpy(chosen, machine, count * sizeof *machine);
    for (unsigned i = 0; i < count; i++)
        first_gpu[i] = sim_segment->unit[machine[i]].gpu;
}

const struct sim_unit *sim_segment_machine_unit(unsigned machine)
{
    return machine < sim_segment->devices ? &sim_segment->unit[machine] : NULL;
}

unsigned sim_segment_first_gpu(unsigned device)
{
    return first_gpu[device];
}

/* The devices that this process sees follow the move. A device that is moved onto takes a number that became free. */
void sim_segment_renumber(const unsigned to[SIM_MAX_DEVICES])
{
    unsigned inverse[SIM_MAX_DEVICES];
    bool entered[SIM_MAX_DEVICES] = {false};
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
        inverse[machine] = machine;
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
        if (to[machine] != machine) {
            inverse[to[machine]] = machine;
            entered[to[machine]] = true;
        }
    for (unsigned i = 0; i < chosen_count; i++) {
        unsigned machine = chosen[i];
        if (to[machine] != machine) {
            chosen[i] = to[machine];
            continue;
        }
        /* Follows the moves back to a device that no other device moves to. */
        while (entered[machine])
            machine = inverse[machine];
        chosen[i] = machine;
    }
}
