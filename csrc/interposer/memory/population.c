/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/population.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>

/* The application's signals must not be delivered to these threads. */
bool gs_population_start_thread(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, function, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

unsigned gs_population_processors(void)
{
    cpu_set_t set;
    /* The call fails if the machine has more processors than the set can hold. */
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : CPU_SETSIZE;
}

/* False if none is left to start. The lock is released meanwhile. The entries stay until all threads have ended. */
static bool populate_next_locked(struct gs_population *population)
{
    if (population->failed || population->next == population->count)
        return false;
    unsigned e = population->next++;
    gs_mutex_unlock(&population->lock);
    bool populated = gs_host_pool_populate(population->pool, population->entries[e].chunk);
    gs_mutex_lock(&population->lock);
    population->entries[e].populated = populated;
    population->failed |= !populated;
    pthread_cond_signal(&population->progress);
    return true;
}

static void *help_populate(void *argument)
{
    struct gs_population *population = argument;
    gs_mutex_lock(&population->lock);
    while (populate_next_locked(population))
        ;
    gs_mutex_unlock(&population->lock);
    return NULL;
}

void gs_population_begin(struct gs_population *population)
{
    unsigned most = gs_population_processors();
    if (most > population->count)
        most = population->count;
    if (most > GS_POPULATING_THREADS)
        most = GS_POPULATING_THREADS;
    /* Creating a thread's stack would wait for the threads that are populating. */
    gs_mutex_lock(&population->lock);
    while (population->thread_count + 1 < most &&
           gs_population_start_thread(&population->threads[population->thread_count], help_populate, population))
        population->thread_count++;
    gs_mutex_unlock(&population->lock);
}

bool gs_population_await(struct gs_population *population, unsigned e)
{
    gs_mutex_lock(&population->lock);
    while (!population->entries[e].populated && !population->failed)
        if (!populate_next_locked(population))
            gs_cond_wait(&population->progress, &population->lock);
    bool populated = !population->failed;
    gs_mutex_unlock(&population->lock);
    return populated;
}

void gs_population_end(struct gs_population *population)
{
    gs_mutex_lock(&population->lock);
    population->failed = true;
    gs_mutex_unlock(&population->lock);
    for (unsigned t = 0; t < population->thread_count; t++)
        pthread_join(population->threads[t], NULL);
    pthread_cond_destroy(&population->progress);
    gs_mutex_destroy(&population->lock);
}
