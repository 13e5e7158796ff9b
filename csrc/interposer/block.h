/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks of device memory and the backends that give them addresses and memory. See memory.h for the rules. */
#ifndef GPUSHARE_BLOCK_H
#define GPUSHARE_BLOCK_H

#include "driver.h"
#include "host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gs_piece_state { GS_PIECE_EMPTY, GS_PIECE_RESIDENT, GS_PIECE_SWAPPED };

struct gs_piece {
    enum gs_piece_state state;
    CUmemGenericAllocationHandle handle;
    struct gs_host_piece *host;
    uint64_t passes; /* the gate's count when it got empty memory: unchanged means that nothing wrote to it */
};

/* A free range of a slab, in order of the offset. */
struct gs_extent {
    size_t offset, size;
    struct gs_extent *next;
};

struct gs_block {
    CUdeviceptr base;
    size_t size, piece_size;
    unsigned piece_count;
    CUdevice ordinal;
    CUcontext context;
    bool slab, moving, doomed;
    unsigned allocations;
    struct gs_extent *free; /* of a slab */
    struct gs_block *next, **link;
    struct gs_piece pieces[];
};

static inline size_t gs_piece_bytes(const struct gs_block *block, unsigned i)
{
    return i + 1 < block->piece_count ? block->piece_size : block->size - (size_t)i * block->piece_size;
}

static inline CUdeviceptr gs_piece_address(const struct gs_block *block, unsigned i)
{
    return block->base + (CUdeviceptr)i * block->piece_size;
}

/*
 * A backend. The block's context is current in the calling thread. start_* queue work on `stream`; finish_* are called
 * once that work is done. A function that fails leaves the piece as it was.
 */
struct gs_backend {
    uint32_t id; /* enum gpushare_backend */
    const char *name;
    CUresult (*reserve)(struct gs_block *block);
    void (*unreserve)(struct gs_block *block);                                 /* no piece has memory any more */
    CUresult (*populate)(struct gs_block *block, unsigned i, CUstream stream); /* EMPTY to RESIDENT */
    CUresult (*start_out)(struct gs_block *block, unsigned i, CUstream stream);
    CUresult (*finish_out)(struct gs_block *block, unsigned i); /* RESIDENT to SWAPPED */
    CUresult (*discard)(struct gs_block *block, unsigned i);    /* RESIDENT, never written, to EMPTY */
    CUresult (*start_in)(struct gs_block *block, unsigned i, CUstream stream);
    void (*finish_in)(struct gs_block *block, unsigned i); /* SWAPPED to RESIDENT */
    void (*abort_in)(struct gs_block *block, unsigned i);  /* the copy of start_in failed */
    void (*drop)(struct gs_block *block, unsigned i);      /* any state to EMPTY; the contents go */
};

extern const struct gs_backend gs_backend_swap;
extern const struct gs_backend gs_backend_managed;

#endif
