/* SPDX-License-Identifier: BSD-3-Clause */
/* The move that is in progress: for which grant, and how much GPU memory that grant has. For the helper thread. */
#ifndef GPUSHARE_CLIENT_MOVING_H
#define GPUSHARE_CLIENT_MOVING_H

#include "memory/mover.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

enum gs_move {
    GS_MOVE_NONE,
    GS_MOVE_OUT,
    GS_MOVE_BACK, /* evict again what was restored, because the room was not enough */
    GS_MOVE_IN,
    GS_MOVE_IN_FILLING /* room is still being made, and the grant may be withdrawn meanwhile */
};

/* Calls gs_mover_restore for the grant of that lease. */
enum gs_restored gs_moving_restore(enum gs_move move, uint64_t lease, struct gpushare_moved results[GPUSHARE_MAX_GPUS],
                                   unsigned *devices, void (*open)(void *), void *argument);

/* Calls gs_mover_evict. */
void gs_moving_evict(enum gs_move move, const uint8_t gpu[16], uint64_t bytes, struct gpushare_moved *result);

/* False: the scheduler has withdrawn the move, or has exited. */
bool gs_moving_may_continue(void);

/* Records the last ROOM and REVOKE. They may arrive before their grant is handled. */
void gs_moving_set_room(const struct gpushare_room *room);
void gs_moving_revoke(uint64_t lease);
bool gs_moving_is_revoked(uint64_t lease);

/* Discards ROOM and REVOKE of a scheduler that has exited. */
void gs_moving_forget(void);

/* For struct gs_moves. */
uint64_t gs_moving_room(const uint8_t gpu[16], bool *last);
void gs_moving_report(const struct gpushare_moved *moved);

#endif
