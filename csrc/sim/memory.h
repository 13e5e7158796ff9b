/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The address space. A device address is a host address inside one large reservation (the arena), so that kernels
 * compiled for the host can use it; what is not backed by physical memory is PROT_NONE and faults. Every allocation,
 * reservation and registered host range is in one table, ordered by address.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "context.h"
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

bool sim_memory_init(void);

/* The table's lock. Whoever uses a range that was found holds it for reading, who changes one for writing. */
extern pthread_rwlock_t sim_ranges_lock;

/* The range that the address is in, or NULL. */
struct sim_range *sim_range_find(uint64_t address);
bool sim_range_is_device(const struct sim_range *range);
void sim_ranges_each(void (*visit)(struct sim_range *range, void *argument), void *argument);

/* The first range that has an address in common with that, or NULL. */
struct sim_range *sim_range_overlapping(uint64_t base, uint64_t size);

/* Adds a range at an address of the arena (`base` 0: any; it is only a wish) or of the host. */
struct sim_range *sim_range_reserve(enum sim_range_kind kind, uint64_t base, uint64_t size, uint64_t alignment);
struct sim_range *sim_range_add_host(enum sim_range_kind kind, uint64_t base, uint64_t size);
void sim_range_remove(struct sim_range *range);

/* Whether it is device memory that the address is in. Under the table's lock. */
bool sim_address_is_device(uint64_t address);

/* Takes the time that it takes to pin so many bytes of host memory. */
void sim_memory_pin(uint64_t bytes);

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

/* Whether a checkpoint can hold it all: nothing is managed, nor known to other processes. */
bool sim_memory_is_own(void);

/* Puts all device memory out of reach, its contents kept, or back. False if the system refuses. */
bool sim_memory_reach(bool reach);

/* Reservations that nothing is mapped in will take no mapping any more. */
void sim_memory_forget_reservations(void);

/* Charges (what no pool pays for), reserves and backs. */
CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, size_t size, uint64_t *base);
CUresult sim_memory_free(uint64_t base);
void sim_memory_release_context(struct sim_context *context);

#endif
