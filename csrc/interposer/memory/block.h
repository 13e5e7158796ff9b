/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks of device memory, and the backends that provide their addresses and memory. The rules are in memory.h. */
#ifndef GPUSHARE_MEMORY_BLOCK_H
#define GPUSHARE_MEMORY_BLOCK_H

#include "driver.h"
#include "memory/host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stands for "unknown" where submissions are counted. */
#define GS_WRITTEN UINT64_MAX

enum gs_piece_state { GS_PIECE_EMPTY, GS_PIECE_RESIDENT, GS_PIECE_SWAPPED };

struct gs_piece {
    enum gs_piece_state state;
    CUmemGenericAllocationHandle handle;
    struct gs_host_piece *host;
    bool moving;         /* the mover is moving it; under gs_memory_lock */
    bool far;            /* SWAPPED, and used from the host because the GPU has no room; under gs_memory_lock */
    uint64_t untouched;  /* not written since there were this many submissions; GS_WRITTEN: unknown */
    CUdeviceptr scratch; /* backends/vmm.c: where it is mapped while it is copied */
};

struct gs_backend;
struct gs_slab;
struct gs_vmm_handle;

struct gs_block {
    const struct gs_backend *backend;
    CUdeviceptr base;
    size_t size, piece_size;
    unsigned piece_count;
    CUdevice ordinal;
    CUcontext context;
    bool moving, doomed;
    unsigned flights;            /* number of its pieces that are moving */
    bool unevictable;            /* shared with other processes: stays on the GPU and counts as unevictable */
    bool of_pool;                /* stream-ordered memory, which outlives its context */
    struct gs_vmm_handle *owner; /* for backends/vmm.c */
    bool written_off;            /* its context has failed: it has no memory and is no longer counted */
    bool lost;                   /* its addresses are no longer reserved: see gs_reserve_again */
    unsigned allocations;
    struct gs_slab *slab; /* NULL: not used for small allocations */
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

static inline void gs_piece_return_host(struct gs_piece *piece)
{
    if (piece->host != NULL)
        gs_host_return(piece->host);
    piece->host = NULL;
}

/*
 * Queues the copies between the piece's host memory and the address. If one of them fails, the earlier ones have
 * completed.
 */
CUresult gs_piece_copy(const struct gs_piece *piece, CUdeviceptr address, bool outward, CUstream stream);

/*
 * A backend. In populate, start_*, finish_out and discard, the block's context is current in the calling thread.
 * start_* queue work on `stream`, and finish_* are called once that work is done. A function that fails does not change
 * the piece.
 */
struct gs_backend {
    uint32_t id; /* enum gpushare_backend */
    const char *name;
    bool needs_host; /* a piece has its `host` from before start_out until after finish_in; the mover provides it */
    CUresult (*reserve)(struct gs_block *block);
    /* called when no piece has memory any more */
    void (*unreserve)(struct gs_block *block);
    CUresult (*populate)(struct gs_block *block, unsigned i, CUstream stream); /* EMPTY to RESIDENT */
    CUresult (*start_out)(struct gs_block *block, unsigned i, CUstream stream);
    CUresult (*finish_out)(struct gs_block *block, unsigned i); /* RESIDENT to SWAPPED */
    CUresult (*discard)(struct gs_block *block, unsigned i);    /* RESIDENT, never written, to EMPTY */
    void (*stay)(struct gs_block *block, unsigned i); /* not RESIDENT to SWAPPED, and used from the host; may be NULL */
    CUresult (*start_in)(struct gs_block *block, unsigned i, CUstream stream);
    void (*finish_in)(struct gs_block *block, unsigned i); /* SWAPPED to RESIDENT */
    void (*abort_in)(struct gs_block *block, unsigned i);  /* called if the copy of start_in failed */
    void (*drop)(struct gs_block *block, unsigned i);      /* any state to EMPTY; the contents are lost */
};

#endif
