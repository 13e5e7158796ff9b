/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The locks of the interposer, and the order in which a thread takes them.
 *
 * A thread may wait for a lock only if its rank is higher than that of each lock that the thread holds. Therefore
 * threads cannot deadlock. docs/contributing/ordering.md explains what each lock protects, and the reasons for its
 * rank.
 *
 * A build with LOCK_RANKS=1, and each build with a sanitizer, checks this. If a thread takes a lock out of order, or
 * releases a lock that it does not hold, the process prints the locks and where they were taken, and ends. In any other
 * build, a lock is a pthread mutex, and taking it is one call of pthread_mutex_lock. Builds that check ranks also check
 * the figures of devices (devices.h).
 *
 * A function whose name ends in _locked is called with its lock held. It keeps the lock, unless its comment says that
 * it releases the lock. In that case, whatever the caller found under the lock may no longer exist, unless something
 * else keeps it.
 */
#ifndef GPUSHARE_BASE_LOCK_H
#define GPUSHARE_BASE_LOCK_H

#include <pthread.h>
#include <time.h>

/* The locks in the order in which they are taken, with their names in the source. No two locks have the same rank. */
#define GS_RANKS(RANK)                                                                                                 \
    /* Held while the thread waits for the driver's start, or for the scheduler. */                                    \
    RANK(PLACEMENT, "placement.lock")                                                                                  \
    RANK(AWAIT, "client.await_lock")                                                                                   \
    RANK(START, "client.start_lock")                                                                                   \
    RANK(GROWTH, "figures.growth")                                                                                     \
    /* Held while the thread waits for a block that another thread holds; then while it waits for the GPU. */          \
    RANK(VMM, "vmm.lock")                                                                                              \
    RANK(BEGINNING, "beginning")                                                                                       \
    /* Tables, which are changed together with the figures. */                                                         \
    RANK(POOLS, "pools.lock")                                                                                          \
    RANK(GRAPHS, "graphs.lock")                                                                                        \
    RANK(ARRAYS, "arrays.lock")                                                                                        \
    RANK(METER, "meter.lock")                                                                                          \
    RANK(MEMORY, "gs_memory_lock")                                                                                     \
    RANK(CLIENT, "gs_client_lock")                                                                                     \
    /* Under any of these, no other is taken but a thread's slot (gate.lock). */                                       \
    RANK(PACE, "pace.lock")                                                                                            \
    RANK(HOST, "gs_host.lock")                                                                                         \
    RANK(GATE, "gate.lock")                                                                                            \
    RANK(CONTEXTS, "gs_contexts.lock")                                                                                 \
    RANK(CAPTURES, "captures.lock")                                                                                    \
    RANK(RESERVING, "reservations.lock")                                                                               \
    RANK(PEERS, "peers.lock")                                                                                          \
    RANK(IPC, "ipc.lock")                                                                                              \
    RANK(POPULATION, "population->lock")                                                                               \
    RANK(STAGING, "staging.lock")                                                                                      \
    RANK(PCI, "pci.lock")

#define GS_RANK_OF(rank, spelt) GS_RANK_##rank,
enum gs_rank { GS_RANKS(GS_RANK_OF) GS_RANK_COUNT };
#undef GS_RANK_OF

struct gs_mutex {
    pthread_mutex_t mutex;
#ifdef GS_LOCK_RANKS
    enum gs_rank rank;
#endif
};

struct gs_rwlock {
    pthread_rwlock_t rwlock;
#ifdef GS_LOCK_RANKS
    enum gs_rank rank;
#endif
};

#ifdef GS_LOCK_RANKS

#define GS_MUTEX(of_rank) {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = of_rank}
#define GS_RWLOCK(of_rank) {.rwlock = PTHREAD_RWLOCK_INITIALIZER, .rank = of_rank}

void gs_lock_waits_at(enum gs_rank rank, const char *place);
void gs_mutex_lock_at(struct gs_mutex *mutex, const char *place);
int gs_mutex_trylock_at(struct gs_mutex *mutex, const char *place);
void gs_mutex_unlock_at(struct gs_mutex *mutex, const char *place);
void gs_mutex_destroy(struct gs_mutex *mutex);
void gs_mutex_after_fork(struct gs_mutex *mutex);
void gs_cond_wait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const char *place);
void gs_cond_timedwait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until,
                          const char *place);
void gs_rwlock_rdlock_at(struct gs_rwlock *rwlock, const char *place);
void gs_rwlock_wrlock_at(struct gs_rwlock *rwlock, const char *place);
void gs_rwlock_unlock_at(struct gs_rwlock *rwlock, const char *place);
void gs_rwlock_after_fork(struct gs_rwlock *rwlock);

#define GS_TEXT_OF(line) #line
#define GS_PLACE_AT(line) __FILE__ ":" GS_TEXT_OF(line)
#define GS_PLACE GS_PLACE_AT(__LINE__)
#define gs_lock_waits(rank) gs_lock_waits_at(rank, GS_PLACE)
#define gs_mutex_lock(mutex) gs_mutex_lock_at(mutex, GS_PLACE)
#define gs_mutex_trylock(mutex) gs_mutex_trylock_at(mutex, GS_PLACE)
#define gs_mutex_unlock(mutex) gs_mutex_unlock_at(mutex, GS_PLACE)
#define gs_cond_wait(cond, mutex) gs_cond_wait_at(cond, mutex, GS_PLACE)
#define gs_cond_timedwait(cond, mutex, until) gs_cond_timedwait_at(cond, mutex, until, GS_PLACE)
#define gs_rwlock_rdlock(rwlock) gs_rwlock_rdlock_at(rwlock, GS_PLACE)
#define gs_rwlock_wrlock(rwlock) gs_rwlock_wrlock_at(rwlock, GS_PLACE)
#define gs_rwlock_unlock(rwlock) gs_rwlock_unlock_at(rwlock, GS_PLACE)

#else

#define GS_MUTEX(of_rank) {.mutex = PTHREAD_MUTEX_INITIALIZER}
#define GS_RWLOCK(of_rank) {.rwlock = PTHREAD_RWLOCK_INITIALIZER}

/* The thread is about to wait for other threads. It may hold this lock and those before it, but no others. */
static inline void gs_lock_waits(enum gs_rank rank)
{
    (void)rank;
}

static inline void gs_mutex_lock(struct gs_mutex *mutex)
{
    pthread_mutex_lock(&mutex->mutex);
}

/* 0: the thread has the lock. Because this does not wait, the thread may hold any other lock. */
static inline int gs_mutex_trylock(struct gs_mutex *mutex)
{
    return pthread_mutex_trylock(&mutex->mutex);
}

static inline void gs_mutex_unlock(struct gs_mutex *mutex)
{
    pthread_mutex_unlock(&mutex->mutex);
}

static inline void gs_mutex_destroy(struct gs_mutex *mutex)
{
    pthread_mutex_destroy(&mutex->mutex);
}

/* In the child of a fork: makes the mutex free, even if a thread of the parent held it. */
static inline void gs_mutex_after_fork(struct gs_mutex *mutex)
{
    pthread_mutex_init(&mutex->mutex, NULL);
}

/* Releases the mutex and takes it again. Of the other locks, the thread may hold vmm.lock and those before it. */
static inline void gs_cond_wait(pthread_cond_t *cond, struct gs_mutex *mutex)
{
    pthread_cond_wait(cond, &mutex->mutex);
}

static inline void gs_cond_timedwait(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until)
{
    pthread_cond_timedwait(cond, &mutex->mutex, until);
}

static inline void gs_rwlock_rdlock(struct gs_rwlock *rwlock)
{
    pthread_rwlock_rdlock(&rwlock->rwlock);
}

static inline void gs_rwlock_wrlock(struct gs_rwlock *rwlock)
{
    pthread_rwlock_wrlock(&rwlock->rwlock);
}

static inline void gs_rwlock_unlock(struct gs_rwlock *rwlock)
{
    pthread_rwlock_unlock(&rwlock->rwlock);
}

static inline void gs_rwlock_after_fork(struct gs_rwlock *rwlock)
{
    pthread_rwlock_init(&rwlock->rwlock, NULL);
}

#endif

#endif
