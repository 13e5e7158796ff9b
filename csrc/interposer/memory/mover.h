/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Moves memory between the GPU and the host, in the helper thread. The rules are in memory.h.
 *
 * Several pieces move at once, so that the copy engine does not wait while one piece is unmapped and the next is
 * mapped. Between pieces the client handles its messages (struct gs_moves).
 */
#ifndef GPUSHARE_MEMORY_MOVER_H
#define GPUSHARE_MEMORY_MOVER_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>

enum gs_restored {
    GS_RESTORED, /* and `open` was called */
    GS_RESTORE_ENDED,
    GS_RESTORE_FAILED
};

/* The functions that the client provides to the mover. All are called by the helper thread. */
struct gs_moves {
    /*
     * Called between two pieces: handles urgent messages, and sleeps up to `patience` (ns) for them. False: the move
     * must end, because the scheduler has withdrawn it or has exited.
     */
    bool (*between_pieces)(uint64_t patience);

    /*
     * The bytes of this process's footprint that may be on the GPU under the current grant. *last: the number is final.
     */
    uint64_t (*room)(const uint8_t gpu[16], bool *last);

    /* Reports how much has been evicted so far. */
    void (*report)(const struct gpushare_moved *moved);

    /* Whether a grant is waiting for the end of the move. */
    bool (*grant_waits)(void);
};

/* Called before the first move. */
void gs_moves_set(const struct gs_moves *moves);

/* Whether the GPUs have free memory for everything that was evicted. True also if that is unknown. */
bool gs_mover_has_room(void);

/*
 * Restores everything within the room of struct gs_moves. Then calls open(argument) while no new block can appear. If
 * something could not be restored, or a message ended the restore, `open` is not called, and what was restored stays.
 * *devices is the number of devices, each with one result. After a failure, at least one result has its error.
 */
enum gs_restored gs_mover_restore(struct gpushare_moved results[GPUSHARE_MAX_GPUS], unsigned *devices,
                                  void (*open)(void *), void *argument);

/*
 * Evicts at least that many bytes from the device, or all that it has; as few more as the size of pieces allows.
 * Reports its progress.
 */
void gs_mover_evict(const uint8_t uuid[16], uint64_t bytes, struct gpushare_moved *result);

#endif
