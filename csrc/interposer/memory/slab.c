/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/slab.h"

#include "base/clock.h"

#include <stdlib.h>

/* Sizes are in granules: the alignment of cuMemAlloc. */
enum { GRANULE = 512, STEPS_LOG2 = 3, STEPS = 1 << STEPS_LOG2, LEVELS = 30, BINS = LEVELS * STEPS };
enum { WORDS = (BINS + 63) / 64, FIT_TRIES = 4 };

static const uint64_t keep_empty_ns = UINT64_C(2000000000);

struct gs_range {
    struct gs_slab *slab;
    uint32_t start, count;
    bool used;
    struct gs_range *before, *after; /* by address */
    struct gs_range *next, **link;   /* free ranges in the same bin */
};

struct gs_slab {
    struct gs_block *block;
    struct arena *arena; /* before it is opened, its own arena, which has no slabs; NULL: closed */
    struct gs_range *first;
    unsigned used; /* number of ranges */
    uint64_t empty_since;
};

/* The slabs of one context. */
struct arena {
    const void *home;
    unsigned slabs;
    struct gs_slab *empty[2]; /* at most one stays; a second one is removed at once */
    uint64_t filled[WORDS];
    struct gs_range *bins[BINS];
    struct arena *next;
};

static struct arena *arenas;

static uint32_t granules(size_t size)
{
    return (uint32_t)((size + GRANULE - 1) / GRANULE);
}

/* Sizes up to STEPS have one bin each. Above, each power of two has STEPS bins. */
static unsigned bin_of(uint32_t count)
{
    if (count < STEPS)
        return count;
    unsigned level = 31 - (unsigned)__builtin_clz(count);
    return (level - STEPS_LOG2 + 1) * STEPS + ((count >> (level - STEPS_LOG2)) & (STEPS - 1));
}

/* The first bin whose ranges are all at least that large. */
static unsigned bin_above(uint32_t count)
{
    if (count < STEPS)
        return count;
    unsigned level = 31 - (unsigned)__builtin_clz(count);
    return bin_of(count + (UINT32_C(1) << (level - STEPS_LOG2)) - 1);
}

static void put_free(struct arena *arena, struct gs_range *range)
{
    unsigned bin = bin_of(range->count);
    range->used = false;
    range->next = arena->bins[bin];
    range->link = &arena->bins[bin];
    if (range->next != NULL)
        range->next->link = &range->next;
    arena->bins[bin] = range;
    arena->filled[bin / 64] |= UINT64_C(1) << bin % 64;
}

static void take_free(struct arena *arena, struct gs_range *range)
{
    unsigned bin = bin_of(range->count);
    *range->link = range->next;
    if (range->next != NULL)
        range->next->link = range->link;
    if (arena->bins[bin] == NULL)
        arena->filled[bin / 64] &= ~(UINT64_C(1) << bin % 64);
}

static struct gs_range *find_free(const struct arena *arena, uint32_t count)
{
    unsigned tries = 0;
    for (struct gs_range *range = arena->bins[bin_of(count)]; range != NULL && tries < FIT_TRIES; range = range->next) {
        if (range->count >= count)
            return range;
        tries++;
    }
    unsigned bin = bin_above(count);
    for (unsigned word = bin / 64; word < WORDS; word++) {
        uint64_t filled = arena->filled[word];
        if (word == bin / 64)
            filled &= ~UINT64_C(0) << bin % 64;
        if (filled != 0)
            return arena->bins[word * 64 + (unsigned)__builtin_ctzll(filled)];
    }
    return NULL;
}

/* Splits off what exceeds `count`. If there is no memory for the new range, this one stays larger than necessary. */
static struct gs_range *split(struct gs_range *range, uint32_t count)
{
    struct gs_range *rest = range->count > count ? malloc(sizeof(*rest)) : NULL;
    if (rest == NULL)
        return NULL;
    *rest = (struct gs_range){.slab = range->slab,
                              .start = range->start + count,
                              .count = range->count - count,
                              .before = range,
                              .after = range->after};
    if (rest->after != NULL)
        rest->after->before = rest;
    range->after = rest;
    range->count = count;
    return rest;
}

/* Merges the range with its upper neighbour. */
static void join(struct gs_range *range)
{
    struct gs_range *gone = range->after;
    range->count += gone->count;
    range->after = gone->after;
    if (range->after != NULL)
        range->after->before = range;
    free(gone);
}

static struct arena *arena_of(const void *home)
{
    struct arena *arena = arenas;
    while (arena != NULL && arena->home != home)
        arena = arena->next;
    return arena;
}

CUdeviceptr gs_range_address(const struct gs_range *range)
{
    return range->slab->block->base + (CUdeviceptr)range->start * GRANULE;
}

struct gs_block *gs_range_block(const struct gs_range *range)
{
    return range->slab->block;
}

struct gs_range *gs_slab_take_locked(const void *home, size_t size)
{
    struct arena *arena = arena_of(home);
    uint32_t count = granules(size);
    struct gs_range *range = arena != NULL ? find_free(arena, count) : NULL;
    if (range == NULL)
        return NULL;
    take_free(arena, range);
    range->used = true;
    struct gs_range *rest = split(range, count);
    if (rest != NULL)
        put_free(arena, rest);
    if (range->slab->used++ == 0)
        for (unsigned i = 0; i < 2; i++)
            if (arena->empty[i] == range->slab)
                arena->empty[i] = NULL;
    return range;
}

void gs_slab_return_locked(struct gs_range *range)
{
    struct gs_slab *slab = range->slab;
    struct arena *arena = slab->arena;
    if (range->after != NULL && !range->after->used) {
        take_free(arena, range->after);
        join(range);
    }
    if (range->before != NULL && !range->before->used) {
        range = range->before;
        take_free(arena, range);
        join(range);
    }
    put_free(arena, range);
    if (--slab->used == 0) {
        slab->empty_since = gs_now_ns();
        arena->empty[arena->empty[0] != NULL] = slab;
    }
}

struct gs_range *gs_slab_make(struct gs_block *block, const void *home, size_t size)
{
    struct gs_slab *slab = calloc(1, sizeof(*slab));
    struct gs_range *range = calloc(1, sizeof(*range));
    struct arena *arena = calloc(1, sizeof(*arena));
    if (slab == NULL || range == NULL || arena == NULL) {
        free(slab);
        free(range);
        free(arena);
        return NULL;
    }
    arena->home = home;
    *slab = (struct gs_slab){.block = block, .arena = arena, .first = range, .used = 1};
    *range = (struct gs_range){.slab = slab, .count = (uint32_t)(block->size / GRANULE), .used = true};
    split(range, granules(size));
    block->slab = slab;
    return range;
}

void gs_slab_open_locked(struct gs_slab *slab)
{
    struct arena *arena = arena_of(slab->arena->home);
    if (arena == NULL) {
        arena = slab->arena;
        arena->next = arenas;
        arenas = arena;
    } else {
        free(slab->arena);
        slab->arena = arena;
    }
    arena->slabs++;
    if (slab->first->after != NULL)
        put_free(arena, slab->first->after);
}

bool gs_range_is_open_locked(const struct gs_range *range)
{
    return range->slab->arena->slabs != 0;
}

static void close_slab(struct gs_slab *slab)
{
    struct arena *arena = slab->arena;
    take_free(arena, slab->first);
    slab->arena = NULL;
    if (--arena->slabs != 0)
        return;
    struct arena **link = &arenas;
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    free(arena);
}

struct gs_block *gs_slab_surplus_locked(const void *home)
{
    struct arena *arena = arena_of(home);
    if (arena == NULL || arena->empty[0] == NULL)
        return NULL;
    struct gs_slab *slab = arena->empty[0];
    bool alone = arena->slabs == 1, more = arena->empty[1] != NULL;
    if (!alone && !more && gs_now_ns() - slab->empty_since < keep_empty_ns)
        return NULL;
    arena->empty[0] = arena->empty[1];
    arena->empty[1] = NULL;
    close_slab(slab);
    return slab->block;
}

void gs_slab_free(struct gs_slab *slab)
{
    if (slab == NULL)
        return;
    while (slab->first != NULL) {
        struct gs_range *range = slab->first;
        slab->first = range->after;
        free(range);
    }
    free(slab->arena); /* its own arena: the slab was never opened */
    free(slab);
}
