/* SPDX-License-Identifier: BSD-3-Clause */
/* Virtual memory management: reservations, physical allocations (one memfd each) and mappings. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "memory.h"

struct sim_mapping_view {
    uint64_t base, size; /* size 0: no mapping */
    bool host;
    unsigned device; /* unless the memory is on the host */
    CUmemAllocationHandleType handle_types;
    unsigned long long id;
};

/*
 * The mapping of a reservation that contains the address (empty for other ranges). Called with the table's lock held.
 */
struct sim_mapping_view sim_mapping_view(const struct sim_range *range, uint64_t address);

/* Whether the address is in device memory. Called with the table's lock held. */
bool sim_address_is_device(uint64_t address);

/*
 * Whether kernels of the device may access the address; false if nothing is mapped. Called with the table's lock held.
 */
bool sim_mapping_is_accessible(const struct sim_range *range, uint64_t address, unsigned device);
/* Whether something is mapped there without any access. */
bool sim_mapping_is_hidden(const struct sim_range *range, uint64_t address);

/* Whether mappings cover that part of a reservation without a gap. Called with the table's lock held. */
bool sim_mapping_covers(uint64_t address, uint64_t size);

/* The file that backs a part of one mapping, or -1. Called with the table's lock held. */
int sim_mapping_file(const struct sim_range *range, uint64_t address, uint64_t size);

/*
 * Makes the mappings of device memory inaccessible, or restores their access. Called with the table's lock held for
 * writing.
 */
bool sim_mappings_reach(const struct sim_range *range, bool reach);

/* Whether another process may share some of it. Called with the table's lock held. */
bool sim_allocations_are_shared(void);

#endif
