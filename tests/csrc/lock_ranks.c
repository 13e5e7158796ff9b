/* SPDX-License-Identifier: BSD-3-Clause */
/* Takes locks of csrc/interposer/base/lock.h in the way that the argument names. */
#include "base/lock.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct gs_mutex growth = GS_MUTEX(GS_RANK_GROWTH), memory = GS_MUTEX(GS_RANK_MEMORY),
                       client = GS_MUTEX(GS_RANK_CLIENT);
static struct gs_rwlock beginning = GS_RWLOCK(GS_RANK_BEGINNING);
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void in_order(void)
{
    gs_rwlock_rdlock(&beginning);
    gs_mutex_lock(&memory);
    gs_mutex_lock(&client);
    gs_mutex_unlock(&memory);
    gs_mutex_unlock(&client);
    gs_mutex_lock(&memory);
    gs_mutex_unlock(&memory);
    gs_rwlock_unlock(&beginning);
}

static void reversed(void)
{
    gs_mutex_lock(&client);
    gs_mutex_lock(&memory);
}

static void twice(void)
{
    gs_rwlock_rdlock(&beginning);
    gs_rwlock_rdlock(&beginning);
}

static void not_held(void)
{
    gs_mutex_unlock(&memory);
}

/* One that is only tried may come at any time. What is waited for after it may not. */
static void tried(void)
{
    gs_mutex_lock(&memory);
    if (gs_mutex_trylock(&growth) == 0)
        gs_mutex_unlock(&growth);
}

static void after_tried(void)
{
    if (gs_mutex_trylock(&client) == 0)
        gs_mutex_lock(&memory);
}

static void times_out(struct gs_mutex *mutex)
{
    const struct timespec past = {.tv_sec = 1};
    gs_cond_timedwait(&changed, mutex, &past);
}

/* The wait has released the lock: what comes after it may be taken, and it is held again. */
static void waited(void)
{
    gs_mutex_lock(&memory);
    times_out(&memory);
    gs_mutex_lock(&client);
    gs_mutex_unlock(&client);
    gs_mutex_unlock(&memory);
}

static void wait_under_another(void)
{
    gs_rwlock_rdlock(&beginning);
    gs_mutex_lock(&memory);
    times_out(&memory);
}

static void wait_for_another_process(void)
{
    gs_mutex_lock(&growth);
    gs_lock_waits(GS_RANK_GROWTH);
    gs_mutex_lock(&memory);
    gs_lock_waits(GS_RANK_GROWTH);
}

/* What its parent held, the child does not. */
static void fork_while_held(void)
{
    gs_mutex_lock(&client);
    if (fork() == 0) {
        gs_mutex_after_fork(&client);
        gs_mutex_lock(&memory);
        gs_mutex_lock(&client);
        gs_mutex_unlock(&client);
        gs_mutex_unlock(&memory);
        puts("the child goes on");
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    gs_mutex_unlock(&client);
}

static void *in_another_thread(void *lock)
{
    gs_mutex_lock(lock);
    gs_mutex_unlock(lock);
    return NULL;
}

/* What another thread holds does not count. */
static void two_threads(void)
{
    pthread_t thread;
    gs_mutex_lock(&client);
    if (pthread_create(&thread, NULL, in_another_thread, &memory) == 0)
        pthread_join(thread, NULL);
    gs_mutex_unlock(&client);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*take)(void);
    } ways[] = {
        {"in-order", in_order},
        {"reversed", reversed},
        {"twice", twice},
        {"not-held", not_held},
        {"tried", tried},
        {"after-tried", after_tried},
        {"waited", waited},
        {"wait-under-another", wait_under_another},
        {"wait-for-another-process", wait_for_another_process},
        {"fork-while-held", fork_while_held},
        {"two-threads", two_threads},
    };
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (count == 2 && strcmp(arguments[1], ways[i].name) == 0) {
            ways[i].take();
            puts("done");
            return 0;
        }
    return 2;
}
