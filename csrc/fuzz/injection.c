/* SPDX-License-Identifier: BSD-3-Clause */
#include "injection.h"

#include "driver.h"

#include <time.h>

/*
 * Failures are injected until then. Refusals are accepted until a little later, because calls in progress may return
 * them.
 */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t until, tolerated_until;
} injection = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *end_injections(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&injection.lock);
    for (;;) {
        if (injection.until == 0) {
            pthread_cond_wait(&injection.changed, &injection.lock);
        } else if (now() >= injection.until) {
            inject("");
            injection.until = 0;
        } else {
            struct timespec until = {.tv_sec = (time_t)(injection.until / 1000000000u),
                                     .tv_nsec = (long)(injection.until % 1000000000u)};
            pthread_cond_timedwait(&injection.changed, &injection.lock, &until);
        }
    }
    return NULL;
}

void start_injections(void)
{
    pthread_t timer;
    if (inject != NULL && pthread_create(&timer, NULL, end_injections, NULL) != 0)
        give_up("fuzz: cannot start a thread");
}

bool injected_lately(void)
{
    pthread_mutex_lock(&injection.lock);
    bool lately = now() < injection.tolerated_until || injection.until != 0;
    pthread_mutex_unlock(&injection.lock);
    return lately;
}

/* inject MILLISECONDS RULES */
void op_inject(struct thread *thread, const struct operation *operation)
{
    if (inject == NULL)
        return;
    pthread_mutex_lock(&injection.lock);
    if (inject(operation->text) != 0)
        wrong(thread, "the rule was refused: %s", operation->text);
    injection.until = now() + operation->n[0] * 1000000u;
    injection.tolerated_until = injection.until + 30 * UINT64_C(1000000000);
    pthread_cond_signal(&injection.changed);
    pthread_mutex_unlock(&injection.lock);
}
