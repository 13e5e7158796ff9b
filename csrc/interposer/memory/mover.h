/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Moves of memory between the GPU and the host: the helper thread's. See memory.h for the rules.
 *
 * Several pieces are under way at once, so that the copy engine does not wait for the unmapping of one piece and the
 * mapping of the next. Between them the client handles its messages (struct gs_moves).
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

/* What the mover asks of the client, which orders the moves. All are called by the helper thread. */
struct gs_moves {
    /*
     * Between two pieces: handles what must not wait for the whole move, sleeping up to `patience` (ns) for it. False:
     * the move must end, because the scheduler has withdrawn it or is gone.
     */
    bool (*between_pieces)(uint64_t patience);

    /*
     * The bytes of this process's footprint that may be on the GPU under the current grant. *last: that number is
     * final.
     */
    uint64_t (*room)(const uint8_t gpu[16], bool *last);

    /* So much has left. */
    void (*report)(const struct gpushare_moved *moved);

    /* A grant has come that waits for the end of the move. */
    bool (*grant_waits)(void);
};

/* Before the first move. */
void gs_moves_set(const struct gs_moves *moves);

/* Whether the GPUs have free memory for all that is not on them now. True also where that is not known. */
bool gs_mover_has_room(void);

/*
 * Makes everything resident, within the room of struct gs_moves, then calls open(argument) while no new block can
 * appear. If something could not be made resident, or if that ended it, open is not called, and what has arrived stays.
 * *devices is the number of devices, with one result each; after a failure, one result at least has its error.
 */
enum gs_restored gs_mover_restore(struct gpushare_moved results[GPUSHARE_MAX_GPUS], unsigned *devices,
                                  void (*open)(void *), void *argument);

/*
 * Moves at least that many bytes off the device, or all there are; as few beyond as pieces allow. Reports
 * what has left so far.
 */
void gs_mover_evict(const uint8_t uuid[16], uint64_t bytes, struct gpushare_moved *result);

#endif
