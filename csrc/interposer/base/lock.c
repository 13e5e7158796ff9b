/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks the ranks of locks (lock.h). Compiled only if GS_LOCK_RANKS is defined. */
#include "base/lock.h"

#include "base/print.h"

#include <stdlib.h>

static const char *const names[] = {
#define NAME(rank, spelt) [GS_RANK_##rank] = spelt,
    GS_RANKS(NAME)
#undef NAME
};

/* A lock that the thread holds, and where it took the lock. */
struct held {
    const void *lock;
    enum gs_rank rank;
    const char *place;
};

/* In the order in which they were taken. No thread holds more than one of each rank. */
static __thread struct {
    struct held locks[GS_RANK_COUNT];
    unsigned count;
} thread __attribute__((tls_model("initial-exec")));

static const struct held *highest(void)
{
    const struct held *found = NULL;
    for (unsigned i = 0; i < thread.count; i++)
        if (found == NULL || thread.locks[i].rank > found->rank)
            found = &thread.locks[i];
    return found;
}

static struct held *find(const void *lock)
{
    unsigned i = 0;
    while (i < thread.count && thread.locks[i].lock != lock)
        i++;
    return i < thread.count ? &thread.locks[i] : NULL;
}

/* The thread is about to wait for the lock. */
static void check(enum gs_rank rank, const char *place)
{
    const struct held *other = highest();
    if (other == NULL || other->rank < rank)
        return;
    gs_print("locks out of order: a thread takes %s (rank %d) at %s while it holds %s (rank %d), which it took at %s",
             names[rank], rank, place, names[other->rank], other->rank, other->place);
    abort();
}

static void add(const void *lock, enum gs_rank rank, const char *place)
{
    thread.locks[thread.count++] = (struct held){.lock = lock, .rank = rank, .place = place};
}

static void take_out(struct held *held)
{
    const struct held *last = &thread.locks[--thread.count];
    for (; held < last; held++)
        held[0] = held[1];
}

static void release(const void *lock, enum gs_rank rank, const char *place)
{
    struct held *held = find(lock);
    if (held == NULL) {
        gs_print("locks out of order: a thread releases %s (rank %d) at %s, which it does not hold", names[rank], rank,
                 place);
        abort();
    }
    take_out(held);
}

/* The child's only thread is a copy of the one that forked. */
static void forget(const void *lock)
{
    struct held *held = find(lock);
    if (held != NULL)
        take_out(held);
}

void gs_lock_waits_at(enum gs_rank rank, const char *place)
{
    const struct held *other = highest();
    if (other == NULL || other->rank <= rank)
        return;
    gs_print("locks out of order: a thread waits at %s, where it may hold %s (rank %d) and nothing after it, while it "
             "holds %s (rank %d), which it took at %s",
             place, names[rank], rank, names[other->rank], other->rank, other->place);
    abort();
}

/* --- Mutexes --- */

void gs_mutex_lock_at(struct gs_mutex *mutex, const char *place)
{
    check(mutex->rank, place);
    pthread_mutex_lock(&mutex->mutex);
    add(mutex, mutex->rank, place);
}

int gs_mutex_trylock_at(struct gs_mutex *mutex, const char *place)
{
    int problem = pthread_mutex_trylock(&mutex->mutex);
    if (problem == 0)
        add(mutex, mutex->rank, place);
    return problem;
}

void gs_mutex_unlock_at(struct gs_mutex *mutex, const char *place)
{
    release(mutex, mutex->rank, place);
    pthread_mutex_unlock(&mutex->mutex);
}

void gs_mutex_destroy(struct gs_mutex *mutex)
{
    pthread_mutex_destroy(&mutex->mutex);
}

void gs_mutex_after_fork(struct gs_mutex *mutex)
{
    forget(mutex);
    pthread_mutex_init(&mutex->mutex, NULL);
}

void gs_cond_wait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const char *place)
{
    release(mutex, mutex->rank, place);
    gs_lock_waits_at(GS_RANK_VMM, place);
    pthread_cond_wait(cond, &mutex->mutex);
    add(mutex, mutex->rank, place);
}

void gs_cond_timedwait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until, const char *place)
{
    release(mutex, mutex->rank, place);
    gs_lock_waits_at(GS_RANK_VMM, place);
    pthread_cond_timedwait(cond, &mutex->mutex, until);
    add(mutex, mutex->rank, place);
}

/* --- Reader-writer locks --- */

void gs_rwlock_rdlock_at(struct gs_rwlock *rwlock, const char *place)
{
    check(rwlock->rank, place);
    pthread_rwlock_rdlock(&rwlock->rwlock);
    add(rwlock, rwlock->rank, place);
}

void gs_rwlock_wrlock_at(struct gs_rwlock *rwlock, const char *place)
{
    check(rwlock->rank, place);
    pthread_rwlock_wrlock(&rwlock->rwlock);
    add(rwlock, rwlock->rank, place);
}

void gs_rwlock_unlock_at(struct gs_rwlock *rwlock, const char *place)
{
    release(rwlock, rwlock->rank, place);
    pthread_rwlock_unlock(&rwlock->rwlock);
}

void gs_rwlock_after_fork(struct gs_rwlock *rwlock)
{
    forget(rwlock);
    pthread_rwlock_init(&rwlock->rwlock, NULL);
}
