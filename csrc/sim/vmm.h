/* SPDX-License-Identifier: BSD-3-Clause */
/* Virtual memory management: reservations, physical allocations (one memfd each) and mappings. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "memory.h"

struct sim_mapping_view {
    uint64_t base, size; /* size 0: nothing is mapped there */
    bool host;
    unsigned device; /* unless it is on the host */
    CUmemAllocationHandleType handle_types;
    unsigned long long id;
};

/* The mapping of a reservation (of another range: none) that the address is in. Under the table's lock. */
struct sim_mapping_view sim_mapping_view(const struct sim_range *range, uint64_t address);

/* Whether it is device memory that the address is in. Under the table's lock. */
bool sim_address_is_device(uint64_t address);

/* Whether kernels of the device may touch the address; false where nothing is mapped. Under the table's lock. */
bool sim_mapping_is_accessible(const struct sim_range *range, uint64_t address, unsigned device);
/* Something is mapped there that nothing may touch. */
bool sim_mapping_is_hidden(const struct sim_range *range, uint64_t address);

/* Whether mappings without a gap make up that part of a reservation. Under the table's lock. */
bool sim_mapping_covers(uint64_t address, uint64_t size);

/* The file behind a part of one mapping, or -1. Under the table's lock. */
int sim_mapping_file(const struct sim_range *range, uint64_t address, uint64_t size);

/* The mappings of device memory are out of reach, or back to their access. Under the table's lock, for writing. */
bool sim_mappings_reach(const struct sim_range *range, bool reach);

/* Whether another process may have some of it. Under the table's lock. */
bool sim_allocations_are_shared(void);

#endif
