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

/*
 * What the mover has learnt about the data of a piece. If all of it had changed several times, it is not hashed for a
 * while: each time twice as long.
 */
struct gs_change {
    uint8_t changed;    /* evictions in a row for which all of the data had changed */
    uint8_t unhashed;   /* number of evictions for which it is not hashed */
    bool compared;      /* `unchanged` is known */
    uint16_t unchanged; /* units that had not changed when the data was last hashed */
};

struct gs_piece {
    enum gs_piece_state state;
    CUmemGenericAllocationHandle handle;
    struct gs_host_record *host; /* NULL: none yet. A SWAPPED piece's needs its units, and no RESIDENT piece's */
    bool moving;                 /* the mover is moving it; under gs_memory_lock */
    bool far;                    /* SWAPPED, and used from the host because the GPU has no room; under gs_memory_lock */
    uint64_t untouched;          /* not written since there were this many submissions; GS_WRITTEN: unknown */
    CUdeviceptr scratch;         /* backends/vmm.c: where it is mapped while it is copied */
    uint64_t clean;              /* of a RESIDENT piece: see struct gpushare_usage; under gs_memory_lock */
    struct gs_change change;
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

/* The piece needs no host memory any more, but keeps what it had as long as there is room. */
static inline void gs_piece_release_host(struct gs_piece *piece)
{
    if (piece->host != NULL)
        gs_host_release(piece->host);
}

static inline void gs_piece_forget_host(struct gs_piece *piece)
{
    if (piece->host != NULL)
        gs_host_record_free(piece->host);
    piece->host = NULL;
}

/*
 * Queues the copies from the address to those units of the piece's host memory that are to be written. If one of them
 * fails, the earlier ones have completed.
 */
CUresult gs_piece_copy_out(const struct gs_piece *piece, CUdeviceptr address, CUstream stream);

/* The same for everything from the host memory to the address. */
CUresult gs_piece_copy_in(const struct gs_piece *piece, CUdeviceptr address, CUstream stream);

/*
 * A backend. In populate, show, hide, start_*, finish_out and discard, the block's context is current in the calling
 * thread. start_* queue work on `stream`, and finish_* are called once that work is done. A function that fails does
 * not change the piece.
 */
struct gs_backend {
    uint32_t id; /* enum gpushare_backend */
    const char *name;
    bool
        needs_host; /* its pieces need host memory from before start_out until after finish_in; the mover provides it */
    CUresult (*reserve)(struct gs_block *block);
    /* called when no piece has memory any more */
    void (*unreserve)(struct gs_block *block);
    CUresult (*populate)(struct gs_block *block, unsigned i, CUstream stream); /* EMPTY to RESIDENT */
    /*
     * Returns an address at which the GPU can read the whole piece, until `hide`, or until start_out or any other
     * function that moves the piece is called. NULL: its data cannot be looked at.
     */
    CUresult (*show)(struct gs_block *block, unsigned i, CUdeviceptr *address);
    void (*hide)(struct gs_block *block, unsigned i);
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
