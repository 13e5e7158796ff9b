/* SPDX-License-Identifier: BSD-3-Clause */
/* Populates chunks of host memory with several threads at once. */
#ifndef GPUSHARE_MEMORY_POPULATION_H
#define GPUSHARE_MEMORY_POPULATION_H

#include "base/lock.h"
#include "memory/host_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The threads that populate, including the waiting one. They run beside the application. */
enum { GS_POPULATING_THREADS = 4 };

struct gs_population_entry {
    uint32_t chunk;
    bool populated;
};

/* A list of chunks: each free thread populates the next one. */
struct gs_population {
    struct gs_mutex lock;
    pthread_cond_t progress;
    struct gs_host_pool *pool;
    struct gs_population_entry *entries;
    unsigned count, next;
    bool failed; /* no further chunk is started */
    pthread_t threads[GS_POPULATING_THREADS - 1];
    unsigned thread_count;
};

void gs_population_begin(struct gs_population *population);

/* Helps until entry `e` is populated. False if the host has no pages for a chunk. */
bool gs_population_await(struct gs_population *population, unsigned e);

/* Stops after the chunks that are being populated, and waits for them. */
void gs_population_end(struct gs_population *population);

/* How many processors this process may use. */
unsigned gs_population_processors(void);

/* Starts a thread that does not receive the application's signals. */
bool gs_population_start_thread(pthread_t *thread, void *(*function)(void *), void *argument);

#endif
