/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/metering.h"

#include "base/clock.h"
#include "base/lock.h"
#include "client/channel.h"
#include "client/waits.h"
#include "gate/meter.h"
#include "gate/pace.h"
#include "protocol.h"

#include <string.h>

static const uint64_t meter_interval = 100 * GS_MILLISECOND;

static struct {
    struct gpushare_meter reported[GPUSHARE_MAX_GPUS];
    uint64_t at;
} metering;

void gs_metering_send(void)
{
    struct gpushare_meter meters[GPUSHARE_MAX_GPUS];
    if (!gs_pace_metered())
        return;
    unsigned gpus = gs_meter_read(meters);
    gs_mutex_lock(&gs_client_lock);
    uint64_t now = gs_now_ns();
    metering.at = now + meter_interval;
    for (unsigned i = 0; i < gpus; i++) {
        if (meters[i].submissions == metering.reported[i].submissions &&
            meters[i].busy_ns == metering.reported[i].busy_ns)
            continue;
        metering.reported[i] = meters[i];
        meters[i].at_ns = now;
        gs_channel_send(GPUSHARE_METER, &meters[i], sizeof(meters[i]));
    }
    gs_mutex_unlock(&gs_client_lock);
}

uint64_t gs_metering_at_locked(void)
{
    return metering.at;
}

void gs_metering_report(void)
{
    gs_mutex_lock(&gs_client_lock);
    metering.at = gs_now_ns() + meter_interval;
    gs_mutex_unlock(&gs_client_lock);
    gs_metering_send();
}

void gs_metering_restart_locked(void)
{
    memset(metering.reported, 0, sizeof(metering.reported));
}
