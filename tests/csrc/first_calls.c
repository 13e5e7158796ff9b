/* SPDX-License-Identifier: BSD-3-Clause */
/* Many threads make the first call of the process at the same time; prints how many got the driver's answer. */
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 32 };

int cuDriverGetVersion(int *version);

static pthread_barrier_t start;
static int right;

static void *call(void *unused)
{
    int version = 0;
    pthread_barrier_wait(&start);
    if (cuDriverGetVersion(&version) == 0 && version == 13050)
        __atomic_add_fetch(&right, 1, __ATOMIC_RELAXED);
    return unused;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, call, NULL) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", right);
    return right == THREADS ? 0 : 1;
}
