/* SPDX-License-Identifier: BSD-3-Clause */
/* Virtual memory management: reservations, physical allocations (one memfd each) and mappings. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "memory.h"

struct sim_mapping_view {
    uint64_t base, size; /* size 0: nothing is mapped there */
    unsigned device;
    unsigned long long id;
};

/* The mapping of a reservation that the address is in. Under the table's lock. */
struct sim_mapping_view sim_mapping_view(const struct sim_range *range, uint64_t address);

#endif
