/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The address space. A device address is a host address inside one large reservation (the arena), so that kernels that
 * are compiled for the host can use it. Memory without physical backing is PROT_NONE and faults. One table, ordered by
 * address, has every allocation, reservation and registered host range.
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
    SIM_RANGE_ARRAY,       /* the memory of an array; its address is not visible */
    SIM_RANGE_GRAPH,       /* of an allocation node; backed between its allocation and its free */
    SIM_RANGE_IPC          /* memory of another process, which is charged for it */
};

#define SIM_PAGE UINT64_C(4096)

struct sim_context;
struct sim_mapping; /* vmm.c */

struct sim_range {
    uint64_t base;
    uint64_t size;   /* as requested */
    uint64_t mapped; /* as backed (whole pages) */
    enum sim_range_kind kind;
    struct sim_context *context; /* NULL for reservations */
    unsigned device;
    unsigned flags;
    unsigned long long id;
    struct sim_mapping *mappings; /* for reservations: in order of address */
    bool forgotten;               /* for reservations: nothing can be mapped any more (inject.h, /forget) */
    struct sim_pool *pool;        /* the pool that owns the memory, of any kind; NULL: none */
    int fd;                       /* the file that backs it, if other processes may map it; otherwise -1 */
    bool leaving;                 /* a stream will free it, so that no call recognises it any more */
    unsigned opened;              /* for IPC: how often it was opened */
    uint64_t resident;            /* for managed memory: bytes on the device */
    uint64_t used_at;             /* for managed memory: last access by a kernel or prefetch */
    int preferred;                /* for managed memory: CU_DEVICE_CPU, a device, or CU_DEVICE_INVALID (the default) */
    struct sim_chunk *chunks;     /* for managed.c */
};

static inline uint64_t sim_round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

bool sim_memory_init(void);

/* The table's lock. Hold it for reading while using a range, and for writing while changing one. */
extern pthread_rwlock_t sim_ranges_lock;

/* The range that contains the address, or NULL. */
struct sim_range *sim_range_find(uint64_t address);
bool sim_range_is_device(const struct sim_range *range);
void sim_ranges_each(void (*visit)(struct sim_range *range, void *argument), void *argument);

/* Visits the last range first. The visitor may remove it. */
void sim_ranges_each_backwards(void (*visit)(struct sim_range *range, void *argument), void *argument);

/* The first range that overlaps this one, or NULL. */
struct sim_range *sim_range_overlapping(uint64_t base, uint64_t size);

/*
 * Adds a range at an address of the arena or of the host. In the arena, `base` is only a preference, and 0 means none.
 */
struct sim_range *sim_range_reserve(enum sim_range_kind kind, uint64_t base, uint64_t size, uint64_t alignment);
struct sim_range *sim_range_add_host(enum sim_range_kind kind, uint64_t base, uint64_t size);
void sim_range_remove(struct sim_range *range);

/* Puts poisoned memory there, or removes it. */
bool sim_memory_back(uint64_t base, uint64_t size);
void sim_memory_unback(uint64_t base, uint64_t size);
void sim_memory_poison(void *address, size_t size);

/*
 * Backs the memory of a range with a file, so that other processes can map it. The contents and the address stay the
 * same, even while kernels run. False if there is no memory for this. Called with the table's lock held for writing.
 */
bool sim_memory_share(struct sim_range *range);

/* Maps a file at a range's address. */
bool sim_memory_back_with(const struct sim_range *range, int fd);

#endif
