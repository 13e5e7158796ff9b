/* SPDX-License-Identifier: BSD-3-Clause */
/* Chunks of host memory that several threads populate at once, since a move waits for them. */
#ifndef GPUSHARE_MEMORY_POPULATION_H
#define GPUSHARE_MEMORY_POPULATION_H

#include "base/lock.h"
#include "memory/host_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* That populate for a move, the one that waits included; beyond that they hinder each other. */
enum { GS_POPULATING_THREADS = 4 };

struct gs_population_entry {
    uint32_t chunk;
    bool populated;
};

/* Chunks that threads populate in this order, each that is free the next one. */
struct gs_population {
    struct gs_mutex lock;
    pthread_cond_t progress;
    struct gs_host_pool *pool;
    struct gs_population_entry *entries;
    unsigned count, next;
    bool failed; /* none is begun any more */
    pthread_t threads[GS_POPULATING_THREADS - 1];
    unsigned thread_count;
};

void gs_population_begin(struct gs_population *population);

/* Helps until then. False if the host has no pages for one of them. */
bool gs_population_await(struct gs_population *population, unsigned e);

void gs_population_end(struct gs_population *population);

/* Without the application's signals. */
bool gs_population_start_thread(pthread_t *thread, void *(*function)(void *), void *argument);

#endif
