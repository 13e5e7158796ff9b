/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/moving.h"

#include "base/lock.h"
#include "client/channel.h"
#include "client/waits.h"
#include "memory/devices.h"

#include <string.h>

static struct {
    enum gs_move move;
    uint64_t lease;
    uint64_t revoked;                              /* the lease in the last REVOKE */
    struct gpushare_room rooms[GPUSHARE_MAX_GPUS]; /* for the lease in the last ROOM */
    unsigned room_count;
} moving;

enum gs_restored gs_moving_restore(enum gs_move move, uint64_t lease, struct gpushare_moved results[GPUSHARE_MAX_GPUS],
                                   unsigned *devices, void (*open)(void *), void *argument)
{
    moving.move = move;
    moving.lease = lease;
    enum gs_restored restored = gs_mover_restore(results, devices, open, argument);
    moving.move = GS_MOVE_NONE;
    return restored;
}

void gs_moving_evict(enum gs_move move, const uint8_t gpu[16], uint64_t bytes, struct gpushare_moved *result)
{
    moving.move = move;
    gs_mover_evict(gpu, bytes, result);
    moving.move = GS_MOVE_NONE;
}

bool gs_moving_may_continue(void)
{
    if (moving.move == GS_MOVE_IN || moving.move == GS_MOVE_BACK)
        return true;
    return gs_channel_is_open() && !(moving.move == GS_MOVE_IN_FILLING && moving.revoked == moving.lease);
}

void gs_moving_set_room(const struct gpushare_room *room)
{
    if (moving.room_count != 0 && moving.rooms[0].lease != room->lease)
        moving.room_count = 0;
    unsigned i = 0;
    while (i < moving.room_count && memcmp(moving.rooms[i].gpu, room->gpu, sizeof(room->gpu)) != 0)
        i++;
    if (i == GPUSHARE_MAX_GPUS)
        return;
    if (room->last)
        gs_device_set_limit(room->gpu, room->resident);
    moving.rooms[i] = *room;
    if (i == moving.room_count)
        moving.room_count++;
}

void gs_moving_revoke(uint64_t lease)
{
    moving.revoked = lease;
}

bool gs_moving_is_revoked(uint64_t lease)
{
    return moving.revoked == lease;
}

void gs_moving_forget(void)
{
    moving.revoked = 0;
    moving.room_count = 0;
}

uint64_t gs_moving_room(const uint8_t gpu[16], bool *last)
{
    *last = moving.move != GS_MOVE_IN_FILLING;
    if (*last)
        return gs_device_limit(gpu);
    for (unsigned i = 0; i < moving.room_count; i++) {
        const struct gpushare_room *room = &moving.rooms[i];
        if (room->lease != moving.lease || memcmp(room->gpu, gpu, sizeof(room->gpu)) != 0)
            continue;
        *last = room->last || room->resident == UINT64_MAX;
        return room->resident;
    }
    return 0;
}

void gs_moving_report(const struct gpushare_moved *moved)
{
    gs_mutex_lock(&gs_client_lock);
    gs_channel_send(GPUSHARE_MOVING, moved, sizeof(*moved));
    gs_mutex_unlock(&gs_client_lock);
}
