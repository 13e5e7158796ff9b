/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Moves of memory between the GPU and the host: the helper thread's. See memory.h for the rules.
 *
 * Several pieces are under way at once, so that the copy engine does not wait for the unmapping of one piece and the
 * mapping of the next. Between them the client handles its messages (gs_client_while_moving).
 */
#ifndef GPUSHARE_MEMORY_MOVER_H
#define GPUSHARE_MEMORY_MOVER_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>

enum gs_restored {
    GS_RESTORED, /* and open was called */
    GS_RESTORE_ENDED,
    GS_RESTORE_FAILED
};

/* Whether the GPUs have free memory for all that is not on them now. True also where that is not known. */
bool gs_mover_has_room(void);

/*
 * Makes everything resident, within gs_client_room, then calls open(argument) while no new block can appear. If
 * something could not be made resident, or if gs_client_while_moving ended it, open is not called, and what has arrived
 * stays. *devices is the number of devices, with one result each; after a failure, one result at least has its error.
 */
enum gs_restored gs_mover_restore(struct gpushare_moved results[GPUSHARE_MAX_GPUS], unsigned *devices,
                                  void (*open)(void *), void *argument);

/*
 * Moves at least that many bytes off the device, or all there are; as few beyond as pieces allow. Says by
 * gs_client_moved what has left so far.
 */
void gs_mover_evict(const uint8_t uuid[16], uint64_t bytes, struct gpushare_moved *result);

/* Its memory is retired already. Waits until the mover is out of the context, and does not enter it again. */
void gs_mover_context_ends(CUcontext context);

void gs_mover_after_fork(void);

#endif
