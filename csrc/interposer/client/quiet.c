/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/quiet.h"

#include "base/clock.h"
#include "base/session.h"
#include "gate/slots.h"

/*
 * The upper limit of the learnt gap, so that a process that holds a lease and computes on the CPU is detected within 50
 * ms.
 */
static const uint64_t longest_gap = 30 * GS_MILLISECOND;

static struct {
    uint32_t beside;
    uint64_t gap, shortest_gap;
    uint64_t passes, since;
    bool draining, ended_by_quiet;
} quiet;

bool gs_quiet_is_watched(void)
{
    return gs_session_contended() != 0 || quiet.beside != 0;
}

void gs_quiet_watch(uint32_t contended, uint32_t beside)
{
    bool watched = gs_quiet_is_watched();
    gs_session_set_contended(contended);
    quiet.beside = beside;
    if (!watched && gs_quiet_is_watched())
        gs_quiet_begin();
}

void gs_quiet_set_shortest(uint64_t gap)
{
    quiet.shortest_gap = gap;
    quiet.gap = gap;
}

uint64_t gs_quiet_gap(void)
{
    return quiet.gap;
}

void gs_quiet_begin(void)
{
    quiet.passes = gs_gate_passes();
    gs_quiet_begin_again();
}

void gs_quiet_begin_again(void)
{
    quiet.since = gs_now_ns();
    quiet.draining = false;
}

bool gs_quiet_is_over(uint64_t now, uint64_t passes, bool busy, bool capturing)
{
    if (busy || passes != quiet.passes) {
        quiet.passes = passes;
        quiet.since = now;
        quiet.draining = false;
        return false;
    }
    return now - quiet.since >= quiet.gap && !capturing;
}

bool gs_quiet_set_draining(bool draining)
{
    bool before = quiet.draining;
    quiet.draining = draining;
    return before;
}

bool gs_quiet_is_draining(void)
{
    return quiet.draining;
}

void gs_quiet_ended(bool by_quiet)
{
    quiet.ended_by_quiet = by_quiet;
}

void gs_quiet_continues(void)
{
    if (!quiet.ended_by_quiet)
        return;
    quiet.ended_by_quiet = false;
    uint64_t gap = gs_now_ns() - quiet.since;
    if (gap < 4 * longest_gap)
        quiet.gap = gap + gap / 4;
    else
        quiet.gap -= quiet.gap / 4;
    if (quiet.gap < quiet.shortest_gap)
        quiet.gap = quiet.shortest_gap;
    if (quiet.gap > longest_gap)
        quiet.gap = longest_gap;
}
