/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The address space. A device address is a host address inside one large reservation (the arena), so that kernels
 * compiled for the host can use it; what is not backed by physical memory is PROT_NONE and faults. Every allocation,
 * reservation and registered host range is in one table, ordered by address.
 */
#ifndef SIM_RANGES_H
#define SIM_RANGES_H

#include "driver.h"

#include <pthread.h>

enum sim_range_kind {
    SIM_RANGE_DEVICE,      /* cuMemAlloc */
    SIM_RANGE_POOL,        /* cuMemAllocAsync */
    SIM_RANGE_MANAGED,     /* cuMemAllocManaged */
    SIM_RANGE_RESERVATION, /* cuMemAddressReserve; physical memory comes with cuMemMap */
    SIM_RANGE_HOST,        /* cuMemHostAlloc */
    SIM_RANGE_REGISTERED,  /* cuMemHostRegister */
    SIM_RANGE_GLOBAL,      /* a variable of a module */
    SIM_RANGE_ARRAY,       /* what is behind an array; its address is nobody's business */
    SIM_RANGE_GRAPH,       /* an allocation node's; backed between its allocation and its free */
    SIM_RANGE_IPC          /* another process's memory; that process pays */
};

#define SIM_PAGE UINT64_C(4096)

struct sim_context;
struct sim_mapping; /* vmm.c */

struct sim_range {
    uint64_t base;
    uint64_t size;   /* as asked for */
    uint64_t mapped; /* as backed (whole pages) */
    enum sim_range_kind kind;
    struct sim_context *context; /* NULL for reservations */
    unsigned device;
    unsigned flags;
    unsigned long long id;
    struct sim_mapping *mappings; /* reservations: in order of address */
    bool forgotten;               /* reservations: nothing can be mapped (inject.h, /forget) */
    struct sim_pool *pool;        /* whose memory it is, of whatever kind; NULL: nobody's */
    int fd;                       /* the file behind it, if other processes may map it, else -1 */
    bool leaving;                 /* a stream will free it: no call recognises it any more */
    unsigned opened;              /* IPC: how often */
    uint64_t resident;            /* managed: bytes on the device */
    uint64_t used_at;             /* managed: last touched by a kernel or prefetch */
    int preferred;                /* managed, from the start: CU_DEVICE_CPU, a device, or CU_DEVICE_INVALID */
    struct sim_chunk *chunks;     /* managed.c */
};

static inline uint64_t sim_round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

bool sim_memory_init(void);

/* The table's lock. Whoever uses a range that was found holds it for reading, who changes one for writing. */
extern pthread_rwlock_t sim_ranges_lock;

/* The range that the address is in, or NULL. */
struct sim_range *sim_range_find(uint64_t address);
bool sim_range_is_device(const struct sim_range *range);
void sim_ranges_each(void (*visit)(struct sim_range *range, void *argument), void *argument);

/* The last one first, and who visits may remove it. */
void sim_ranges_each_backwards(void (*visit)(struct sim_range *range, void *argument), void *argument);

/* The first range that has an address in common with that, or NULL. */
struct sim_range *sim_range_overlapping(uint64_t base, uint64_t size);

/* Adds a range at an address of the arena (`base` 0: any; it is only a wish) or of the host. */
struct sim_range *sim_range_reserve(enum sim_range_kind kind, uint64_t base, uint64_t size, uint64_t alignment);
struct sim_range *sim_range_add_host(enum sim_range_kind kind, uint64_t base, uint64_t size);
void sim_range_remove(struct sim_range *range);

/* Puts poisoned memory there, or takes it away. */
bool sim_memory_back(uint64_t base, uint64_t size);
void sim_memory_unback(uint64_t base, uint64_t size);
void sim_memory_poison(void *address, size_t size);

/*
 * Puts a file behind the memory of a range, with the same contents, at the same address and while kernels run, so that
 * other processes can map it. False if there is no memory for that. Under the table's lock, for writing.
 */
bool sim_memory_share(struct sim_range *range);

/* Maps a file at a range's address. */
bool sim_memory_back_with(const struct sim_range *range, int fd);

#endif
