/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/grants.h"

#include "base/helper.h"
#include "base/lock.h"
#include "base/print.h"
#include "client/channel.h"
#include "client/lease.h"
#include "client/moving.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/context_list.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/devices.h"
#include "memory/host_ahead.h"
#include "memory/mover.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/*
 * How many consecutive restores may fail without progress before the calls that wait for them fail. The scheduler waits
 * for up to a second between two. More attempts are allowed when the driver has no free memory, because that may change
 * soon.
 */
enum { MOST_FAILED_RESTORES = 8, MOST_RESTORES_WITHOUT_MEMORY = 16 };

static struct {
    unsigned failed_restores; /* consecutive failures */
    uint64_t most_restored;   /* the most bytes that were resident after one of them */
    uint64_t prepare;
    bool prepare_waits; /* the first context does not exist yet */
} grants;

static void open_gate(void *lease)
{
    gs_mutex_lock(&gs_client_lock);
    gs_lease_grant_locked(*(const uint64_t *)lease);
    gs_mutex_unlock(&gs_client_lock);
}

void gs_grants_prepare(void)
{
    CUcontext context = grants.prepare_waits && gs_waking_is_awake() ? gs_context_any() : NULL;
    if (context == NULL)
        return;
    grants.prepare_waits = false;
    gs_host_prepare(grants.prepare, context);
}

void gs_grants_prepare_bytes(const struct gpushare_prepare *prepare)
{
    grants.prepare = prepare->bytes;
    grants.prepare_waits = true;
    gs_grants_prepare();
}

static bool lacks_descriptors(void)
{
    int copy = fcntl(gs_helper_calls(), F_DUPFD_CLOEXEC, 0);
    if (copy >= 0)
        close(copy);
    return copy < 0 && errno == EMFILE;
}

/* Returns why the restore failed. *last: too many consecutive restores have failed. */
static CUresult count_failed_restore(const struct gpushare_moved *moved, unsigned devices, bool *last)
{
    CUresult failure = CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t resident = 0;
    for (unsigned i = 0; i < devices; i++) {
        resident += moved[i].usage.resident;
        if (moved[i].error != CUDA_SUCCESS)
            failure = (CUresult)moved[i].error;
    }
    if (grants.failed_restores == 0 || resident > grants.most_restored) {
        grants.failed_restores = 0;
        grants.most_restored = resident;
    }
    bool may_pass = failure == CUDA_ERROR_OUT_OF_MEMORY && !lacks_descriptors();
    *last = ++grants.failed_restores >= (may_pass ? MOST_RESTORES_WITHOUT_MEMORY : MOST_FAILED_RESTORES);
    return failure;
}

/* No data is lost: what was not restored stays in host memory, and the next call requests a lease again. */
static void abandon_restore_locked(CUresult failure)
{
    const char *name = NULL;
    if (GS_REAL(cuGetErrorName)(failure, &name) != CUDA_SUCCESS || name == NULL)
        name = "CUDA error";
    gs_print(
        "could not restore this process's data to the GPU in %u attempts (%s, %d)%s. The CUDA calls that were waiting "
        "for it fail. No data is lost: it stays in host memory, and the next call tries again",
        grants.failed_restores, name, (int)failure,
        lacks_descriptors() ? ", because the process has no file descriptors left (`ulimit -n`)" : "");
    grants.failed_restores = 0;
    gs_lease_fail_waiters_locked(failure);
}

void gs_grants_grant(const struct gpushare_lease *grant)
{
    uint64_t lease = grant->lease;
    gs_mutex_lock(&gs_client_lock);
    bool stale = gs_lease_is_held_locked(), asleep = gs_waking_state_locked() != GS_WAKING_AWAKE;
    if (asleep)
        gs_lease_send_released_locked(lease, GPUSHARE_CAUSE_FAILED); /* no thread has requested the lease */
    gs_mutex_unlock(&gs_client_lock);
    if (stale || asleep)
        return;
    gs_grants_prepare();
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    enum gs_move move = grant->filling ? GS_MOVE_IN_FILLING : GS_MOVE_IN;
    enum gs_restored restored = gs_moving_restore(move, lease, moved, &devices, open_gate, &lease);
    bool failed = restored == GS_RESTORE_FAILED, last = false;
    CUresult failure = failed ? count_failed_restore(moved, devices, &last) : CUDA_SUCCESS;
    if (restored == GS_RESTORED)
        grants.failed_restores = 0;
    gs_mutex_lock(&gs_client_lock);
    /* If no call is waiting any more, there is no reason to try again. */
    last = failed && (last || gs_lease_waiters_locked() == 0);
    for (unsigned i = 0; i < devices; i++) {
        moved[i].serial = lease;
        if (last)
            moved[i].status = GPUSHARE_MOVE_PARTIAL; /* the scheduler retries a failed restore */
        gs_channel_send(GPUSHARE_RESTORED, &moved[i], sizeof(moved[i]));
    }
    if (restored == GS_RESTORE_ENDED) {
        gs_lease_send_released_locked(lease, GPUSHARE_CAUSE_FAILED);
    } else if (last) {
        if (gs_lease_waiters_locked() != 0)
            abandon_restore_locked(failure);
        grants.failed_restores = 0;
        gs_lease_send_last_released_locked(lease, GPUSHARE_CAUSE_RELEASE);
    } else if (failed) {
        gs_lease_keep_request_locked(); /* the scheduler queues this process again */
    } else if (gs_moving_is_revoked(lease)) {
        gs_lease_release_locked(GPUSHARE_CAUSE_REVOKE);
    }
    gs_mutex_unlock(&gs_client_lock);
}

void gs_grants_revoke(const struct gpushare_lease *revoke)
{
    gs_moving_revoke(revoke->lease);
    gs_mutex_lock(&gs_client_lock);
    if (gs_lease_id_locked() == revoke->lease)
        gs_lease_release_locked(GPUSHARE_CAUSE_REVOKE);
    gs_mutex_unlock(&gs_client_lock);
}

static void let_one_submit(void *lease)
{
    gs_mutex_lock(&gs_client_lock);
    gs_lease_step_locked(*(const uint64_t *)lease);
    gs_mutex_unlock(&gs_client_lock);
}

/*
 * The group's lease is being released, and running work of another process may wait for what this process has yet to
 * submit. The memory of each process stays until all have released the lease, so a submission finds what it needs.
 */
void gs_grants_step(const struct gpushare_lease *step)
{
    uint64_t lease = step->lease;
    gs_mutex_lock(&gs_client_lock);
    bool returned = !gs_lease_is_held_locked() && step->filling;
    bool drains = gs_lease_is_draining_locked(lease);
    bool waits = gs_lease_waiters_locked() != 0;
    gs_mutex_unlock(&gs_client_lock);
    if (!returned && !drains)
        return;
    if (waits) {
        struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
        unsigned devices;
        /* Memory that was allocated while the gate was shut has no backing yet. */
        gs_moving_restore(GS_MOVE_IN, lease, moved, &devices, let_one_submit, &lease);
        gs_devices_report();
    }
    gs_mutex_lock(&gs_client_lock);
    if (!gs_lease_is_held_locked()) /* no thread is waiting, or there was no room for the missing memory */
        gs_lease_send_released_locked(lease, GPUSHARE_CAUSE_REVOKE);
    gs_mutex_unlock(&gs_client_lock);
}

void gs_grants_evict(const struct gpushare_evict *evict)
{
    struct gpushare_moved moved = {.serial = evict->serial};
    gs_mutex_lock(&gs_client_lock);
    bool stays = gs_lease_is_held_locked() || gs_waking_state_locked() != GS_WAKING_AWAKE;
    gs_mutex_unlock(&gs_client_lock);
    gs_moving_evict(GS_MOVE_OUT, evict->gpu, stays ? 0 : evict->bytes, &moved);
    gs_mutex_lock(&gs_client_lock);
    gs_channel_send(GPUSHARE_EVICTED, &moved, sizeof(moved));
    gs_mutex_unlock(&gs_client_lock);
}

/* Evicts what was restored, so that another waiting process may use that room. */
static void return_room(void)
{
    struct gpushare_moved moved;
    struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    for (unsigned i = gs_devices_usages(usages); i-- != 0;)
        if (usages[i].resident != 0)
            gs_moving_evict(GS_MOVE_BACK, usages[i].gpu, usages[i].resident, &moved);
}

void gs_grants_restore_alone(void (*lack_locked)(void))
{
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    uint64_t no_lease = 0;
    enum gs_restored restored = GS_RESTORE_ENDED;
    if (gs_memory_oversubscribed() || gs_mover_has_room())
        restored = gs_moving_restore(GS_MOVE_IN, no_lease, moved, &devices, open_gate, &no_lease);
    bool last = false;
    CUresult failure =
        restored == GS_RESTORE_FAILED ? count_failed_restore(moved, devices, &last) : CUDA_ERROR_OUT_OF_MEMORY;
    gs_mutex_lock(&gs_client_lock);
    bool opened = gs_lease_is_held_locked();
    if (opened)
        grants.failed_restores = 0;
    else if (failure == CUDA_ERROR_OUT_OF_MEMORY)
        lack_locked();
    else if (last)
        abandon_restore_locked(failure);
    gs_mutex_unlock(&gs_client_lock);
    if (!opened)
        return_room();
}
