/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/engines.h"

#include "base/clock.h"
#include "segment/devices.h"
#include "segment/record.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

uint64_t sim_segment_reserve(unsigned device, enum sim_engine engine, uint64_t duration)
{
    device = sim_segment_machine(device);
    uint64_t *free_at = &sim_segment->device[device].free_at[engine];
    uint64_t now = sim_now();
    uint64_t before = __atomic_load_n(free_at, __ATOMIC_RELAXED), after;
    do
        after = (before > now ? before : now) + duration;
    while (!__atomic_compare_exchange_n(free_at, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return after;
}

uint64_t sim_segment_compute_begin(unsigned device)
{
    device = sim_segment_machine(device);
    struct sim_segment_device *d = &sim_segment->device[device];
    sim_segment_lock(&d->turn);
    sim_segment_lock(&d->busy);
    pthread_mutex_unlock(&d->turn);
    return sim_now();
}

/* Whether it has the lock before that time (CLOCK_REALTIME, which is all that old C libraries can wait for). */
static bool lock_until(pthread_mutex_t *mutex, const struct timespec *deadline)
{
    int error = pthread_mutex_timedlock(mutex, deadline);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    return error == 0 || error == EOWNERDEAD;
}

bool sim_segment_compute_try_begin(unsigned device, uint64_t patience, uint64_t *begin)
{
    struct sim_segment_device *d = &sim_segment->device[sim_segment_machine(device)];
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    uint64_t nanoseconds = (uint64_t)deadline.tv_nsec + patience;
    deadline.tv_sec += (time_t)(nanoseconds / 1000000000);
    deadline.tv_nsec = (long)(nanoseconds % 1000000000);
    if (!lock_until(&d->turn, &deadline))
        return false;
    bool begun = lock_until(&d->busy, &deadline);
    pthread_mutex_unlock(&d->turn);
    *begin = sim_now();
    return begun;
}

uint64_t sim_segment_compute_end(unsigned device, uint64_t begin)
{
    device = sim_segment_machine(device);
    uint64_t ran = sim_now() - begin;
    __atomic_fetch_add(&sim_segment->device[device].busy_ns, ran, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sim_segment->device[device].busy);
    return ran;
}

unsigned sim_segment_utilization(unsigned device)
{
    device = sim_segment_machine(device);
    struct sim_segment_device *d = &sim_segment->device[device];
    sim_segment_lock(&sim_segment->lock);
    uint64_t now = sim_now(), busy = __atomic_load_n(&d->busy_ns, __ATOMIC_RELAXED);
    uint64_t span = now - d->sampled_at, ran = busy - d->sampled_busy_ns;
    d->sampled_at = now;
    d->sampled_busy_ns = busy;
    pthread_mutex_unlock(&sim_segment->lock);
    return span == 0 ? 0 : ran >= span ? 100 : (unsigned)(ran * 100 / span);
}
