/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/memory.h"

#include "base/clock.h"
#include "segment/devices.h"
#include "segment/energy.h"
#include "segment/record.h"

#include <string.h>

static bool is_parked;
static uint64_t parked[SIM_MAX_DEVICES][SIM_CHARGES];

static void sum(unsigned device, struct sim_usage *usage)
{
    *usage = (struct sim_usage){.total = sim_segment->unit[device].memory};
    for (struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS; record++) {
        if (record->pid == 0)
            continue;
        usage->used += record->charged[device][SIM_CHARGE_MEMORY] + record->charged[device][SIM_CHARGE_CONTEXT] +
                       record->left[device];
        usage->managed += record->managed[device];
    }
    for (struct sim_shared_file *shared = sim_segment->shared; shared < sim_segment->shared + SIM_MAX_SHARED; shared++)
        if (shared->file != 0 && shared->device == device)
            usage->used += shared->bytes;
}

/* Evicts the managed memory that was used least recently, of any process; of this process only if it is not spared. */
static uint64_t steal(unsigned device, uint64_t bytes, uint64_t older_than, const struct sim_record *spared)
{
    uint64_t stolen = 0;
    while (stolen < bytes) {
        struct sim_record *victim = NULL;
        for (struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS;
             record++)
            if (record->pid != 0 && record != spared && record->managed[device] > 0 &&
                record->managed_at[device] < older_than &&
                (victim == NULL || record->managed_at[device] < victim->managed_at[device]))
                victim = record;
        if (victim == NULL)
            break;
        uint64_t part = bytes - stolen < victim->managed[device] ? bytes - stolen : victim->managed[device];
        victim->managed[device] -= part;
        stolen += part;
    }
    return stolen;
}

bool sim_segment_charge(unsigned device, enum sim_charge what, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (sim_record_self == NULL)
        return false;
    sim_segment_lock(&sim_segment->lock);
    struct sim_usage usage;
    sum(device, &usage);
    if (bytes > usage.total || usage.used > usage.total - bytes) {
        sim_records_reap();
        sum(device, &usage);
    }
    bool fits = bytes <= usage.total && usage.used <= usage.total - bytes;
    if (fits) {
        uint64_t room = usage.total - usage.used - bytes;
        if (usage.managed > room)
            steal(device, usage.managed - room, UINT64_MAX, NULL);
        sim_energy_advance(sim_segment, device);
        sim_record_self->charged[device][what] += bytes;
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return fits;
}

void sim_segment_refund(unsigned device, enum sim_charge what, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (sim_record_self == NULL)
        return;
    sim_segment_lock(&sim_segment->lock);
    sim_energy_advance(sim_segment, device);
    (is_parked ? parked : sim_record_self->charged)[device][what] -= bytes;
    pthread_mutex_unlock(&sim_segment->lock);
}

uint64_t sim_segment_own(unsigned device)
{
    device = sim_segment_machine(device);
    sim_segment_lock(&sim_segment->lock);
    uint64_t bytes =
        sim_record_self == NULL ? 0 : (is_parked ? parked : sim_record_self->charged)[device][SIM_CHARGE_MEMORY];
    pthread_mutex_unlock(&sim_segment->lock);
    return bytes;
}

void sim_segment_park(uint64_t left)
{
    sim_segment_lock(&sim_segment->lock);
    if (sim_record_self != NULL) { /* the record may end meanwhile */
        sim_energy_advance_all(sim_segment);
        memcpy(parked, sim_record_self->charged, sizeof parked);
        memset(sim_record_self->charged, 0, sizeof sim_record_self->charged);
        for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
            sim_record_self->left[machine] =
                parked[machine][SIM_CHARGE_CONTEXT] < left ? parked[machine][SIM_CHARGE_CONTEXT] : left;
        is_parked = true;
    }
    pthread_mutex_unlock(&sim_segment->lock);
}

/* Whether the parked memory fits after evicting managed memory. Called with the lock held. */
static bool make_room(const unsigned to[SIM_MAX_DEVICES])
{
    uint64_t needed[SIM_MAX_DEVICES] = {0}, given[SIM_MAX_DEVICES] = {0};
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++) {
        needed[to[machine]] += parked[machine][SIM_CHARGE_MEMORY] + parked[machine][SIM_CHARGE_CONTEXT];
        given[machine] = sim_record_self->left[machine];
    }
    struct sim_usage usage;
    for (unsigned machine = 0; machine < sim_segment->devices; machine++) {
        sum(machine, &usage);
        if (needed[machine] > 0 && usage.used - given[machine] + needed[machine] > usage.total)
            return false;
    }
    for (unsigned machine = 0; machine < sim_segment->devices; machine++) {
        sum(machine, &usage);
        uint64_t used = usage.used - given[machine] + needed[machine];
        if (used + usage.managed > usage.total)
            steal(machine, used + usage.managed - usage.total, UINT64_MAX, NULL);
    }
    return true;
}

bool sim_segment_unpark(const unsigned to[SIM_MAX_DEVICES])
{
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    bool fits = sim_record_self != NULL && is_parked && make_room(to);
    if (fits) {
        sim_energy_advance_all(sim_segment);
        for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
            for (unsigned what = 0; what < SIM_CHARGES; what++)
                sim_record_self->charged[to[machine]][what] += parked[machine][what];
        memset(sim_record_self->left, 0, sizeof sim_record_self->left);
        sim_segment_renumber(to);
        is_parked = false;
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return fits;
}

void sim_segment_forget_parked(void)
{
    is_parked = false;
}

/* The shared memory of that file. If there is none and `add` is set, an unused entry; otherwise NULL. */
static struct sim_shared_file *find_shared(uint64_t name, bool add)
{
    struct sim_shared_file *place = NULL;
    for (struct sim_shared_file *shared = sim_segment->shared; shared < sim_segment->shared + SIM_MAX_SHARED;
         shared++) {
        if (shared->file == name)
            return shared;
        if (shared->file == 0 && add && place == NULL)
            place = shared;
    }
    return place;
}

static void use_shared(struct sim_shared_file *shared)
{
    size_t bit = (size_t)(sim_record_self - sim_segment->records);
    shared->users[bit / 64] |= UINT64_C(1) << bit % 64;
}

bool sim_segment_share(unsigned device, uint64_t name, uint64_t bytes)
{
    if (device < SIM_MAX_DEVICES)
        device = sim_segment_machine(device);
    if (sim_record_self == NULL)
        return false;
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    struct sim_shared_file *shared = find_shared(name, true);
    if (shared != NULL && shared->file == 0) {
        *shared = (struct sim_shared_file){.file = name, .bytes = bytes, .device = device};
        if (device < SIM_MAX_DEVICES)
            sim_record_self->charged[device][SIM_CHARGE_MEMORY] -= bytes;
        use_shared(shared);
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return shared != NULL;
}

bool sim_segment_join(unsigned *device, uint64_t name, uint64_t bytes)
{
    if (sim_record_self == NULL)
        return false;
    unsigned machine = *device < SIM_MAX_DEVICES ? sim_segment_machine(*device) : *device;
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    struct sim_shared_file *shared = find_shared(name, true);
    if (shared != NULL && shared->file == 0) {
        struct sim_usage usage;
        sum(machine, &usage);
        if (bytes > usage.total || usage.used > usage.total - bytes)
            shared = NULL;
        else
            *shared = (struct sim_shared_file){.file = name, .bytes = bytes, .device = machine};
    }
    if (shared != NULL) {
        /* Memory on a device that this process does not see counts as host memory. */
        if (shared->device >= SIM_MAX_DEVICES || !sim_segment_seen(shared->device, device))
            *device = SIM_MAX_DEVICES;
        use_shared(shared);
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return shared != NULL;
}

void sim_segment_leave(uint64_t name)
{
    if (sim_record_self == NULL)
        return;
    sim_segment_lock(&sim_segment->lock);
    struct sim_shared_file *shared = find_shared(name, false);
    if (shared != NULL)
        sim_shared_file_leave(shared, sim_record_self);
    pthread_mutex_unlock(&sim_segment->lock);
}

void sim_segment_usage(unsigned device, struct sim_usage *usage)
{
    device = sim_segment_machine(device);
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    sum(device, usage);
    pthread_mutex_unlock(&sim_segment->lock);
}

/* Shared memory is reported for its first user, so that it is reported once. */
static uint64_t shared_by(unsigned device, const struct sim_record *record)
{
    size_t own = (size_t)(record - sim_segment->records);
    uint64_t bytes = 0;
    for (struct sim_shared_file *shared = sim_segment->shared; shared < sim_segment->shared + SIM_MAX_SHARED;
         shared++) {
        if (shared->file == 0 || shared->device != device)
            continue;
        size_t first = 0;
        while ((shared->users[first / 64] >> first % 64 & 1) == 0)
            first++;
        if (first == own)
            bytes += shared->bytes;
    }
    return bytes;
}

unsigned sim_segment_processes(unsigned device, struct sim_process_usage *processes, unsigned size)
{
    device = sim_segment_machine(device);
    unsigned count = 0;
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    for (struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS; record++) {
        if (record->pid == 0 || record->died_at != 0 || record->charged[device][SIM_CHARGE_CONTEXT] == 0)
            continue;
        pid_t pid = sim_record_pid(record);
        if (pid <= 0)
            continue;
        if (count < size)
            processes[count] = (struct sim_process_usage){.pid = pid,
                                                          .bytes = record->charged[device][SIM_CHARGE_MEMORY] +
                                                                   record->charged[device][SIM_CHARGE_CONTEXT] +
                                                                   record->managed[device] + shared_by(device, record)};
        count++;
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return count;
}

uint64_t sim_segment_managed_resident(unsigned device)
{
    device = sim_segment_machine(device);
    if (sim_record_self == NULL)
        return 0;
    sim_segment_lock(&sim_segment->lock);
    uint64_t bytes = sim_record_self->managed[device];
    pthread_mutex_unlock(&sim_segment->lock);
    return bytes;
}

uint64_t sim_segment_managed_admit(unsigned device, uint64_t bytes, uint64_t older_than, uint64_t *stolen)
{
    device = sim_segment_machine(device);
    *stolen = 0;
    if (sim_record_self == NULL)
        return 0;
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    struct sim_usage usage;
    sum(device, &usage);
    uint64_t taken = usage.used + usage.managed;
    uint64_t room = taken < usage.total ? usage.total - taken : 0;
    if (room < bytes)
        *stolen = steal(device, bytes - room, older_than, sim_record_self);
    uint64_t admitted = room + *stolen < bytes ? room + *stolen : bytes;
    sim_record_self->managed[device] += admitted;
    sim_record_self->managed_at[device] = sim_now();
    pthread_mutex_unlock(&sim_segment->lock);
    return admitted;
}

void sim_segment_managed_drop(unsigned device, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (sim_record_self == NULL)
        return;
    sim_segment_lock(&sim_segment->lock);
    sim_record_self->managed[device] -=
        bytes < sim_record_self->managed[device] ? bytes : sim_record_self->managed[device];
    pthread_mutex_unlock(&sim_segment->lock);
}
