/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opening the driver takes no lock. A thread that holds the dynamic linker's lock (a constructor that calls CUDA) would
 * wait for such a lock. The holder would wait in dlopen for the linker's lock: a deadlock. So every thread that arrives
 * before the driver is open does the same work, which is idempotent. The first to publish its result wins.
 */
#include "loader/real.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "loader/locate.h"

/* A power of two, and at least twice the number of functions. */
#define BUCKETS 2048

_Static_assert(BUCKETS >= 2 * GS_FN_COUNT && GS_FN_COUNT < UINT16_MAX, "the address map is too small");

struct driver {
    char *path; /* NULL: there is no driver */
    void *addresses[GS_FN_COUNT];
    uint16_t buckets[BUCKETS]; /* 1 + index of the function, 0: empty */
};

static struct driver *driver;

static CUresult no_device(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

static CUresult not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static size_t bucket_of(const void *address)
{
    return (size_t)(((uint64_t)(uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 53) % BUCKETS;
}

static void map_addresses(struct driver *made)
{
    for (size_t i = 0; i < GS_FN_COUNT; i++) {
        if (made->addresses[i] == NULL)
            continue;
        size_t bucket = bucket_of(made->addresses[i]);
        while (made->buckets[bucket] != 0)
            bucket = (bucket + 1) % BUCKETS;
        made->buckets[bucket] = (uint16_t)(i + 1);
    }
}

static struct driver *open_driver(void)
{
    struct driver *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    void *handle = gs_locate("GPUSHARE_DRIVER", "libcuda.so.1", "gpushare_version", RTLD_NOW | RTLD_LOCAL, &made->path);
    if (handle != NULL) {
        for (size_t i = 0; i < GS_FN_COUNT; i++)
            made->addresses[i] = dlsym(handle, gs_real_names[i]);
        map_addresses(made);
    }
    return made;
}

static const struct driver *the_driver(void)
{
    struct driver *known = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
    if (__builtin_expect(known != NULL, 1))
        return known;
    struct driver *made = open_driver();
    /* If there is no memory for the table, the process has no driver for now. */
    static struct driver none;
    if (made == NULL)
        return &none;
    if (__atomic_compare_exchange_n(&driver, &known, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return made;
    free(made->path);
    free(made);
    return known;
}

bool gs_real_load(void)
{
    const struct driver *known = the_driver();
    CUresult (*lacking)(void) = known->path != NULL ? not_supported : no_device;
    for (size_t i = 0; i < GS_FN_COUNT; i++) {
        void *function = known->addresses[i] != NULL ? known->addresses[i] : (void *)lacking;
        __atomic_store_n(&gs_real_table[i], function, __ATOMIC_RELEASE);
    }
    return known->path != NULL;
}

bool gs_real_has(enum gs_fn_index function)
{
    return the_driver()->addresses[function] != NULL;
}

const char *gs_real_path(void)
{
    return the_driver()->path;
}

/* Whether `name` is the symbol of a version or stream variant of `base`. */
static bool is_variant(const char *name, const char *base)
{
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0)
        return false;
    name += length;
    return *name == '\0' || strncmp(name, "_v", 2) == 0 || strncmp(name, "_pt", 3) == 0;
}

static bool is_per_thread(const char *name)
{
    size_t length = strlen(name);
    return length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0);
}

void *gs_real_translate(void *address, const char *symbol, bool per_thread)
{
    const struct driver *known = the_driver();
    void *best = NULL;
    int best_rank = -1;
    for (size_t bucket = bucket_of(address); known->buckets[bucket] != 0; bucket = (bucket + 1) % BUCKETS) {
        size_t i = known->buckets[bucket] - 1;
        if (known->addresses[i] != address)
            continue;
        const char *name = gs_real_names[i];
        int rank = 2 * is_variant(name, symbol) + (is_per_thread(name) == per_thread);
        if (rank > best_rank) {
            best_rank = rank;
            best = gs_real_entries[i];
        }
    }
    return best;
}
