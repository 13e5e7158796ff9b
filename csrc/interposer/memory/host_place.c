/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which unit of host memory has which data. A unit is one piece's, or has the data of several with equal contents.
 *
 * Data that has changed goes to the unit that had it before, if nobody else needs that: the unit is page-locked
 * already, and adjacent data stays adjacent. Other data goes to chunks without users, so that one copy moves much, or,
 * what is less than a chunk, beside other data of this process. Last of all, copies kept for others are given up.
 */
#include "memory/host_place.h"

#include "base/clock.h"
#include "digest.h"
#include "memory/host_crew.h"
#include "memory/host_state.h"
#include "pool.h"
#include "pool_directory.h"

#include <stdlib.h>

static struct gpushare_pool_chunk *shared_of(const struct gs_host_pool *pool, uint32_t number)
{
    return &pool->shared->chunks[number / GS_HOST_UNITS];
}

static struct gs_host_chunk *chunk_of(const struct gs_host_pool *pool, uint32_t number)
{
    return &pool->chunks[number / GS_HOST_UNITS];
}

struct gs_host_pool *gs_host_pool_of(const struct gs_host_record *record)
{
    struct gs_host_pool *pool = gs_host.pools;
    while (pool != NULL && pool->serial != record->serial)
        pool = pool->next;
    return pool;
}

static uint32_t now(void)
{
    return gpushare_pool_clock(gs_now_ns());
}

/* --- One unit --- */

static void set_used(struct gs_host_pool *pool, uint32_t number, bool used)
{
    struct gs_host_chunk *chunk = chunk_of(pool, number);
    uint8_t bit = (uint8_t)(1u << number % GS_HOST_UNITS);
    if (used == ((chunk->used & bit) != 0))
        return;
    chunk->used ^= bit;
    gs_host_pool_list_partial(pool, chunk);
    gs_host_pool_count_bare(pool, chunk);
    if (used)
        __atomic_add_fetch(&gs_host.bytes, GS_HOST_UNIT, __ATOMIC_RELAXED);
    else
        __atomic_sub_fetch(&gs_host.bytes, GS_HOST_UNIT, __ATOMIC_RELAXED);
}

static void add_holder(struct gs_host_pool *pool, uint32_t number)
{
    chunk_of(pool, number)->holders[number % GS_HOST_UNITS]++;
    set_used(pool, number, true);
}

static void drop_holder(struct gs_host_pool *pool, uint32_t number)
{
    if (--chunk_of(pool, number)->holders[number % GS_HOST_UNITS] != 0)
        return;
    gpushare_pool_release(shared_of(pool, number), number % GS_HOST_UNITS, pool->user, now());
    set_used(pool, number, false);
}

/* Needs a unit again if it still has that digest. `generation`: NULL, or which content it must have. */
static bool hold(struct gs_host_pool *pool, uint32_t number, const uint64_t *generation, const uint64_t *digest)
{
    struct gpushare_pool_chunk *shared = shared_of(pool, number);
    uint32_t unit = number % GS_HOST_UNITS;
    /* A page-lock must not end during a copy. */
    while (chunk_of(pool, number)->working)
        gs_cond_wait(&gs_host.changed, &gs_host.lock);
    bool mine = chunk_of(pool, number)->holders[unit] != 0;
    if ((!mine && number / GS_HOST_UNITS >= gs_host_pool_limit(pool)) || !gpushare_pool_matches(shared, unit, digest) ||
        !gpushare_pool_hold(shared, unit, pool->user))
        return false;
    if (gpushare_pool_matches(shared, unit, digest) &&
        (generation == NULL || gpushare_pool_generation(shared, unit) == *generation)) {
        add_holder(pool, number);
        return true;
    }
    if (!mine)
        gpushare_pool_release(shared, unit, pool->user, gpushare_pool_used_at(shared, unit));
    return false;
}

static void leave_home(struct gs_host_pool *pool, struct gs_host_unit *unit)
{
    if (unit->state == GS_UNIT_KEPT && pool != NULL)
        chunk_of(pool, unit->number)->homes--;
    unit->state = GS_UNIT_NONE;
}

static void enter_home(struct gs_host_pool *pool, struct gs_host_unit *unit)
{
    chunk_of(pool, unit->number)->homes++;
    unit->state = GS_UNIT_KEPT;
}

static void begin_writing(struct gs_host_pool *pool, struct gs_host_unit *unit, uint32_t number)
{
    gpushare_pool_spoil(shared_of(pool, number), number % GS_HOST_UNITS);
    unit->number = number;
    unit->generation = gpushare_pool_generation(shared_of(pool, number), number % GS_HOST_UNITS);
    unit->state = GS_UNIT_WRITING;
    set_used(pool, number, true);
}

/* --- What need not be written --- */

static bool find_equal(struct gs_host_pool *pool, const uint64_t *digest, uint32_t *number)
{
    for (unsigned e = 0; pool->directory.buckets != 0 && e < GPUSHARE_POOL_BUCKET; e++) {
        int64_t found = gpushare_pool_directory_find(&pool->directory, digest, e);
        if (found < 0 || !hold(pool, (uint32_t)found, NULL, digest))
            continue;
        *number = (uint32_t)found;
        return true;
    }
    return false;
}

static void need(struct gs_host_pool *pool, struct gs_host_unit *unit, uint32_t number)
{
    unit->number = number;
    unit->generation = gpushare_pool_generation(shared_of(pool, number), number % GS_HOST_UNITS);
    unit->state = GS_UNIT_NEEDED;
}

void gs_host_match(struct gs_host_record *record, const struct gpushare_digest *digests,
                   struct gs_host_summary *summary)
{
    struct gs_host_pool *pool = record->pool;
    *summary = (struct gs_host_summary){0};
    for (unsigned u = 0; u < record->count; u++) {
        struct gs_host_unit *unit = &record->units[u];
        bool kept = unit->state == GS_UNIT_KEPT;
        uint32_t number = kept ? unit->number : GS_NO_UNIT;
        if (digests != NULL && digests[u].any == 0) {
            leave_home(pool, unit);
            unit->state = GS_UNIT_ZERO;
            summary->zero++;
        } else if (digests != NULL && kept && hold(pool, number, &unit->generation, digests[u].words)) {
            leave_home(pool, unit);
            need(pool, unit, number);
            summary->same++;
        } else if (digests != NULL && find_equal(pool, digests[u].words, &number)) {
            leave_home(pool, unit);
            need(pool, unit, number);
            summary->shared++;
        } else {
            leave_home(pool, unit);
            unit->state = GS_UNIT_WANTED;
            unit->number = number;
            summary->written++;
        }
    }
}

/* --- Room for the rest --- */

struct placing {
    struct gs_host_record *record;
    unsigned next; /* no unit before this is WANTED */
    unsigned left;
    struct gs_host_search search;
};

/* A claimed unit is for the next part of the piece. */
static void assign(struct placing *placing, uint32_t number)
{
    struct gs_host_record *record = placing->record;
    while (record->units[placing->next].state != GS_UNIT_WANTED)
        placing->next++;
    begin_writing(record->pool, &record->units[placing->next], number);
    placing->left--;
}

static void place_at_home(struct placing *placing)
{
    struct gs_host_record *record = placing->record;
    struct gs_host_pool *pool = record->pool;
    for (unsigned u = 0; u < record->count; u++) {
        struct gs_host_unit *unit = &record->units[u];
        uint32_t number = unit->number;
        if (unit->state != GS_UNIT_WANTED || number == GS_NO_UNIT)
            continue;
        unit->number = GS_NO_UNIT;
        struct gpushare_pool_chunk *shared = shared_of(pool, number);
        if (!gs_host_pool_usable(pool, number / GS_HOST_UNITS) ||
            gpushare_pool_generation(shared, number % GS_HOST_UNITS) != unit->generation ||
            !gpushare_pool_claim(shared, number % GS_HOST_UNITS, pool->user))
            continue;
        if (gpushare_pool_generation(shared, number % GS_HOST_UNITS) != unit->generation) {
            gpushare_pool_unclaim(shared, number % GS_HOST_UNITS);
            continue;
        }
        begin_writing(pool, unit, number);
        placing->left--;
    }
}

/* Claims part of a chunk of which all units are claimed already, if there is one. */
static bool claim_stock(struct gs_host_pool *pool, unsigned units, uint32_t *i)
{
    if (!gs_host_crew_stock(pool, i))
        return false;
    for (unsigned unit = units; unit < GS_HOST_UNITS; unit++)
        gpushare_pool_unclaim(&pool->shared->chunks[*i], unit);
    return true;
}

/* Page-locked chunks first, then those that are about to be. */
static bool claim_new(struct placing *placing, unsigned units, uint32_t *i)
{
    struct gs_host_pool *pool = placing->record->pool;
    if (gs_host_pool_claim_new(pool, &placing->search, units, i) || claim_stock(pool, units, i))
        return true;
    placing->search.end = GS_HOST_KEPT;
    return gs_host_pool_claim_new(pool, &placing->search, units, i);
}

static bool place_in_new(struct placing *placing, unsigned units)
{
    uint32_t i;
    if (!claim_new(placing, units, &i))
        return false;
    for (unsigned unit = 0; unit < units; unit++)
        assign(placing, i * GS_HOST_UNITS + unit);
    return true;
}

static bool place_in_kept(struct placing *placing, unsigned units)
{
    uint32_t i;
    if (!gs_host_pool_claim_kept(placing->record->pool, units, &i))
        return false;
    for (unsigned unit = 0; unit < units; unit++)
        assign(placing, i * GS_HOST_UNITS + unit);
    return true;
}

static bool is_open(const struct gpushare_pool_chunk *chunk, unsigned unit, bool kept)
{
    return gpushare_pool_users(chunk, unit) == 0 && (kept || gpushare_pool_used_at(chunk, unit) == 0);
}

/* The length of the first run of free units without kept copies at or after `from`; *first is its start. */
static unsigned run_after(const struct gpushare_pool_chunk *chunk, unsigned from, unsigned *first)
{
    while (from < GS_HOST_UNITS && !is_open(chunk, from, false))
        from++;
    *first = from;
    while (from < GS_HOST_UNITS && is_open(chunk, from, false))
        from++;
    return from - *first;
}

/* Claims up to so many free units of a chunk, from `first` on. */
static void place_in(struct placing *placing, uint32_t i, unsigned first, unsigned units, bool kept)
{
    struct gs_host_pool *pool = placing->record->pool;
    struct gpushare_pool_chunk *chunk = &pool->shared->chunks[i];
    for (unsigned unit = first; unit < GS_HOST_UNITS && units != 0; unit++) {
        if (!is_open(chunk, unit, kept) || !gpushare_pool_claim(chunk, unit, pool->user))
            continue;
        assign(placing, i * GS_HOST_UNITS + unit);
        units--;
    }
}

/* Places the rest in one run beside other data of this process. */
static bool place_in_run(struct placing *placing)
{
    struct gs_host_pool *pool = placing->record->pool;
    for (const struct gs_host_chunk *chunk = pool->partial; chunk != NULL; chunk = chunk->next) {
        uint32_t i = (uint32_t)(chunk - pool->chunks);
        unsigned first, run;
        if (!gs_host_pool_usable(pool, i))
            continue;
        for (unsigned from = 0; (run = run_after(&pool->shared->chunks[i], from, &first)) != 0; from = first + run) {
            if (run < placing->left)
                continue;
            place_in(placing, i, first, placing->left, false);
            return placing->left == 0;
        }
    }
    return false;
}

/* Places all of the rest beside other data of this process. */
static bool place_scattered(struct placing *placing)
{
    struct gs_host_pool *pool = placing->record->pool;
    unsigned open = 0;
    for (const struct gs_host_chunk *chunk = pool->partial; chunk != NULL && open < placing->left; chunk = chunk->next)
        for (unsigned unit = 0; unit < GS_HOST_UNITS && gs_host_pool_usable(pool, (uint32_t)(chunk - pool->chunks));
             unit++)
            open += is_open(&pool->shared->chunks[chunk - pool->chunks], unit, false);
    if (open < placing->left)
        return false;
    for (struct gs_host_chunk *chunk = pool->partial, *next; chunk != NULL && placing->left != 0; chunk = next) {
        next = chunk->next;
        if (gs_host_pool_usable(pool, (uint32_t)(chunk - pool->chunks)))
            place_in(placing, (uint32_t)(chunk - pool->chunks), 0, placing->left, false);
    }
    return placing->left == 0;
}

static bool place_anywhere(struct placing *placing, bool kept)
{
    struct gs_host_pool *pool = placing->record->pool;
    uint32_t limit = gs_host_pool_limit(pool);
    for (uint32_t i = 0; i < limit && placing->left != 0; i++)
        if (gs_host_pool_usable(pool, i))
            place_in(placing, i, 0, placing->left, kept);
    return placing->left == 0;
}

bool gs_host_place(struct gs_host_record *record)
{
    struct placing placing = {.record = record, .search = {.end = GS_HOST_PREPARED}};
    for (unsigned u = 0; u < record->count; u++)
        placing.left += record->units[u].state == GS_UNIT_WANTED;
    place_at_home(&placing);
    while (placing.left >= GS_HOST_UNITS && place_in_new(&placing, GS_HOST_UNITS))
        ;
    if (placing.left == 0 || (placing.left < GS_HOST_UNITS && place_in_run(&placing)) || place_scattered(&placing) ||
        (placing.left < GS_HOST_UNITS && place_in_new(&placing, placing.left)))
        return true;
    while (placing.left >= GS_HOST_UNITS && place_in_kept(&placing, GS_HOST_UNITS))
        ;
    return placing.left == 0 || place_anywhere(&placing, false) ||
           (placing.left < GS_HOST_UNITS && place_in_kept(&placing, placing.left)) || place_anywhere(&placing, true);
}

/* --- Afterwards --- */

void gs_host_publish_locked(struct gs_host_record *record, const struct gpushare_digest *digests)
{
    struct gs_host_pool *pool = record->pool;
    for (unsigned u = 0; u < record->count; u++) {
        struct gs_host_unit *unit = &record->units[u];
        uint32_t number = unit->number, other;
        if (unit->state != GS_UNIT_WRITING)
            continue;
        const uint64_t *digest = digests != NULL ? digests[u].words : NULL;
        /* Meanwhile equal data may have got a unit: another part of this piece, or that of another process. */
        if (digest != NULL && find_equal(pool, digest, &other)) {
            gpushare_pool_unclaim(shared_of(pool, number), number % GS_HOST_UNITS);
            set_used(pool, number, false);
            need(pool, unit, other);
            continue;
        }
        gpushare_pool_publish(shared_of(pool, number), number % GS_HOST_UNITS, pool->user, digest, now());
        unit->state = GS_UNIT_NEEDED;
        add_holder(pool, number);
        if (digest != NULL && pool->directory.buckets != 0)
            gpushare_pool_directory_add(&pool->directory, digest, number);
    }
}

void gs_host_release_locked(struct gs_host_record *record)
{
    struct gs_host_pool *pool = record->pool;
    for (unsigned u = 0; u < record->count; u++) {
        struct gs_host_unit *unit = &record->units[u];
        uint32_t number = unit->number;
        if (unit->state == GS_UNIT_NEEDED) {
            drop_holder(pool, number);
            enter_home(pool, unit);
        } else if (unit->state == GS_UNIT_WRITING) {
            gpushare_pool_unclaim(shared_of(pool, number), number % GS_HOST_UNITS);
            set_used(pool, number, false);
            enter_home(pool, unit);
        } else if (unit->state == GS_UNIT_WANTED) {
            unit->state = GS_UNIT_NONE;
        }
    }
}

void gs_host_forget_locked(struct gs_host_record *record)
{
    struct gs_host_pool *pool = gs_host_pool_of(record);
    for (unsigned u = 0; u < record->count; u++) {
        struct gs_host_unit *unit = &record->units[u];
        uint32_t number = unit->number;
        if (unit->state == GS_UNIT_KEPT && pool != NULL) {
            struct gpushare_pool_chunk *shared = shared_of(pool, number);
            uint32_t place = number % GS_HOST_UNITS;
            /* The first to be given up, unless another process needs it. */
            if (chunk_of(pool, number)->holders[place] == 0 && gpushare_pool_users(shared, place) == 0 &&
                gpushare_pool_generation(shared, place) == unit->generation &&
                gpushare_pool_hold(shared, place, pool->user))
                gpushare_pool_release(shared, place, pool->user, 1);
        }
        leave_home(pool, unit);
    }
}
