/* SPDX-License-Identifier: BSD-3-Clause */
#include "ranges.h"

#include "fault.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MADV_POPULATE_WRITE; <sys/mman.h> defines it only since glibc 2.35. */
#define ADVICE_POPULATE_WRITE 23
#define ARENA_SIZE (UINT64_C(1) << 40)
#define ARENA_LEAST (UINT64_C(1) << 34)
#define POISON 0xCD

pthread_rwlock_t sim_ranges_lock = PTHREAD_RWLOCK_INITIALIZER;

static struct sim_range **ranges; /* ordered by base */
static size_t range_count, range_size;
static uint64_t arena, arena_end, cursor, freed;
static unsigned long long next_id = 1;

bool sim_memory_init(void)
{
    /* If the address space is limited (ulimit -v), reserves what is possible. */
    for (uint64_t size = ARENA_SIZE; size >= ARENA_LEAST; size /= 2) {
        void *address =
            mmap(NULL, size + SIM_GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address == MAP_FAILED)
            continue;
        arena = sim_round_up((uint64_t)(uintptr_t)address, SIM_GRANULARITY);
        arena_end = arena + size;
        cursor = arena;
        return true;
    }
    return false;
}

/* The index of the first range that ends after the address. */
static size_t search(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->base + ranges[middle]->mapped <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sim_range *sim_range_find(uint64_t address)
{
    size_t index = search(address);
    if (index == range_count || ranges[index]->base > address)
        return NULL;
    return ranges[index];
}

bool sim_range_is_device(const struct sim_range *range)
{
    return range != NULL && range->kind != SIM_RANGE_HOST && range->kind != SIM_RANGE_REGISTERED;
}

void sim_ranges_each(void (*visit)(struct sim_range *range, void *argument), void *argument)
{
    for (size_t i = 0; i < range_count; i++)
        visit(ranges[i], argument);
}

void sim_ranges_each_backwards(void (*visit)(struct sim_range *range, void *argument), void *argument)
{
    for (size_t i = range_count; i-- > 0;)
        visit(ranges[i], argument);
}

static struct sim_range *insert(enum sim_range_kind kind, uint64_t base, uint64_t size, uint64_t mapped)
{
    if (range_count == range_size) {
        size_t larger = range_size == 0 ? 256 : range_size * 2;
        struct sim_range **moved = realloc(ranges, larger * sizeof *moved);
        if (moved == NULL)
            return NULL;
        ranges = moved;
        range_size = larger;
    }
    struct sim_range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return NULL;
    range->kind = kind;
    range->base = base;
    range->size = size;
    range->mapped = mapped;
    range->id = next_id++;
    range->preferred = CU_DEVICE_INVALID;
    range->fd = -1;
    size_t index = search(base);
    memmove(ranges + index + 1, ranges + index, (range_count - index) * sizeof *ranges);
    ranges[index] = range;
    range_count++;
    return range;
}

/* A gap of the arena at or after `from`, with one page left free before the next range to catch overruns. 0: none. */
static uint64_t find_gap(uint64_t from, uint64_t size, uint64_t alignment)
{
    uint64_t candidate = sim_round_up(from, alignment);
    for (size_t index = search(candidate); index < range_count; index++) {
        if (ranges[index]->base >= candidate + size + SIM_PAGE)
            break;
        if (ranges[index]->base + ranges[index]->mapped > candidate)
            candidate = sim_round_up(ranges[index]->base + ranges[index]->mapped + SIM_PAGE, alignment);
    }
    return candidate + size + SIM_PAGE <= arena_end && candidate >= arena ? candidate : 0;
}

struct sim_range *sim_range_reserve(enum sim_range_kind kind, uint64_t wish, uint64_t size, uint64_t alignment)
{
    uint64_t mapped = sim_round_up(size, SIM_PAGE);
    if (mapped < size || mapped > arena_end - arena)
        return NULL;
    uint64_t base = 0;
    /* A requested address may leave no free page between neighbours. */
    if (wish >= arena && wish < arena_end && wish % alignment == 0 && mapped <= arena_end - wish &&
        sim_range_overlapping(wish, mapped) == NULL)
        base = wish;
    /* What was freed last is reused first if configured ... */
    if (base == 0 && sim_config.reuse && freed != 0 && find_gap(freed, mapped, alignment) == freed)
        base = freed;
    if (base == 0 && sim_config.reuse)
        base = find_gap(arena, mapped, alignment);
    /* ... and otherwise as late as possible, so that a stale pointer faults. */
    if (base == 0)
        base = find_gap(cursor, mapped, alignment);
    if (base == 0)
        base = find_gap(arena, mapped, alignment);
    if (base == 0)
        return NULL;
    cursor = base + mapped + SIM_PAGE;
    return insert(kind, base, size, mapped);
}

struct sim_range *sim_range_overlapping(uint64_t base, uint64_t size)
{
    size_t index = search(base);
    return index < range_count && ranges[index]->base < base + size ? ranges[index] : NULL;
}

struct sim_range *sim_range_add_host(enum sim_range_kind kind, uint64_t base, uint64_t size)
{
    return insert(kind, base, size, size);
}

void sim_range_remove(struct sim_range *range)
{
    size_t index = search(range->base);
    if (range->base >= arena && range->base < arena_end)
        freed = range->base;
    memmove(ranges + index, ranges + index + 1, (range_count - index - 1) * sizeof *ranges);
    range_count--;
    free(range);
}

void sim_memory_poison(void *address, size_t size)
{
    memset(address, POISON, size);
}

bool sim_memory_back(uint64_t base, uint64_t size)
{
    void *address = (void *)(uintptr_t)base;
    if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED)
        return false;
    if (size >= SIM_GRANULARITY)
        madvise(address, size, MADV_HUGEPAGE);
    madvise(address, size, MADV_DONTFORK);
    /* All pages at once. Before Linux 5.14, they are created one by one. */
    madvise(address, size, ADVICE_POPULATE_WRITE);
    sim_memory_poison(address, size);
    return true;
}

void sim_memory_unback(uint64_t base, uint64_t size)
{
    mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static int share(const struct sim_range *range)
{
    void *address = (void *)(uintptr_t)range->base;
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return -1;
    /* A thread that writes meanwhile faults, and writes again once the file is mapped. */
    sim_fault_pause();
    bool done = mprotect(address, range->mapped, PROT_READ) == 0 && ftruncate(fd, (off_t)range->mapped) == 0;
    for (uint64_t at = 0; done && at < range->mapped;) {
        ssize_t part = pwrite(fd, (const char *)address + at, range->mapped - at, (off_t)at);
        done = part > 0;
        at += part > 0 ? (uint64_t)part : 0;
    }
    done = done && sim_memory_back_with(range, fd);
    if (!done)
        mprotect(address, range->mapped, PROT_READ | PROT_WRITE);
    sim_fault_resume();
    if (done)
        return fd;
    close(fd);
    return -1;
}

bool sim_memory_share(struct sim_range *range)
{
    if (range->fd < 0)
        range->fd = share(range);
    return range->fd >= 0;
}

bool sim_memory_back_with(const struct sim_range *range, int fd)
{
    void *address = (void *)(uintptr_t)range->base;
    if (mmap(address, range->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return false;
    madvise(address, range->mapped, MADV_DONTFORK);
    return true;
}
