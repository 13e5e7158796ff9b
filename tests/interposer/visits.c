/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prints how many basic blocks of blocks.c, which is compiled to count them, one visit of as many blocks of memory
 * takes as the argument says. The visitor frees each block that it visits: `visits COUNT`.
 */
#include "loader/real.h"
#include "memory/blocks.h"

#include <stdio.h>
#include <stdlib.h>

void __sanitizer_cov_trace_pc(void);

/* What blocks.c needs of the rest of the interposer. */
void *gs_real_table[GS_FN_COUNT];
struct gs_mutex gs_memory_lock = GS_MUTEX(GS_RANK_MEMORY);
struct gs_device gs_devices[GPUSHARE_MAX_GPUS];
static unsigned long steps;

void __sanitizer_cov_trace_pc(void)
{
    steps++;
}

struct gs_device *gs_device_of(CUdevice ordinal)
{
    return &gs_devices[ordinal];
}

bool gs_gate_enter_leased(struct gs_slot **entered)
{
    *entered = NULL;
    return false;
}

void gs_slab_free(struct gs_slab *slab)
{
    (void)slab;
}

static unsigned long visited;

static void visit(struct gs_block *block, void *argument)
{
    /* What comes next goes away meanwhile, now and then. */
    struct gs_block *next = block->next;
    if (next != NULL && ++visited % 3 == 0 && gs_block_retire_locked(argument, next))
        gs_block_free(next);
}

int main(int count, char **arguments)
{
    struct gs_device *device = &gs_devices[0];
    device->last_block = &device->blocks;
    struct gs_slot *entered;
    for (unsigned long i = count == 2 ? strtoul(arguments[1], NULL, 10) : 0; i > 0; i--)
        gs_block_add_locked(device, gs_block_new(device, NULL, NULL, GS_GRANULARITY, GS_GRANULARITY), &entered);
    steps = 0;
    gs_blocks_visit(device, NULL, visit, device);
    printf("%lu %lu\n", visited, steps);
    return 0;
}
