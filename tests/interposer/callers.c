/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program that calls the driver, as a library finds it, in the ways that a second gate has to stop.
 *
 *   callers stress THREADS   threads ask, wait, free and submit, until a line comes; prints "<calls> <cancelled>"
 *   callers sweep NAMES      when a line comes, calls each function that the file names, with nothing but zeros; prints
 *                            the names of those that were not cancelled, and "done"; ends when another line comes
 *   callers exit             calls once more when the process ends, after what was registered later: "<result>"
 *
 * "ready" comes first. A call that fails, but for one that was cancelled, ends it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long address;

enum { CANCELLED = 304, NOT_READY = 600, MOST = 16 };

static void *driver, *context;
static int stop;
static unsigned long calls, cancelled;

static void *symbol(const char *name)
{
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "callers: no %s\n", name);
        exit(1);
    }
    return found;
}

/* True if the call did what it is for. */
static int check(int result, const char *what)
{
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    if (result == CANCELLED)
        __atomic_add_fetch(&cancelled, 1, __ATOMIC_RELAXED);
    else if (result != 0 && result != NOT_READY) {
        fprintf(stderr, "callers: %s: CUDA error %d\n", what, result);
        _exit(1);
    }
    return result != CANCELLED;
}

#define CALL(name, ...) check(((int (*)())symbol(#name))(__VA_ARGS__), #name)

static void *ask(void *number)
{
    void *event = NULL, *stream = NULL, *current;
    address memory = 0;
    unsigned long free_bytes, total;
    int attribute, flags = 1;
    while (!CALL(cuCtxSetCurrent, context))
        ;
    while (!CALL(cuEventCreate, &event, 2))
        ;
    while (!CALL(cuStreamCreate, &stream, flags))
        ;
    for (unsigned round = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); round++) {
        CALL(cuEventQuery, event);
        CALL(cuStreamQuery, stream);
        CALL(cuCtxGetCurrent, &current);
        CALL(cuMemGetInfo_v2, &free_bytes, &total);
        CALL(cuStreamSynchronize, stream);
        CALL(cuEventRecord, event, stream);
        if (memory == 0 && !CALL(cuMemAlloc_v2, &memory, (size_t)4096))
            memory = 0;
        if (memory != 0)
            CALL(cuPointerGetAttribute, &attribute, 2, memory);
        /* One of them submits, now and then: while it waits for the lease, it is inside. */
        if (memory != 0 && number == NULL && round % 64 == 0)
            CALL(cuMemsetD32_v2, memory, 7u, (size_t)1024);
        if (memory != 0 && CALL(cuMemFree_v2, memory))
            memory = 0;
        /* All rest for as long as a process takes to be parked, now and then. */
        if (round % 8 == 0)
            usleep(20000);
    }
    return NULL;
}

static void say(const char *text)
{
    printf("%s\n", text);
    fflush(stdout);
}

static void at_the_end(void)
{
    int device;
    printf("%d\n", ((int (*)())symbol("cuCtxGetDevice"))(&device));
    fflush(stdout);
}

static void sweep(const char *file)
{
    char name[128];
    FILE *names = fopen(file, "r");
    while (names != NULL && fscanf(names, "%127s", name) == 1)
        if (((int (*)())symbol(name))(0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L) != CANCELLED)
            say(name);
    say(names != NULL ? "done" : "no names");
}

int main(int count, char **arguments)
{
    char line[16];
    const char *names = count == 3 && strcmp(arguments[1], "sweep") == 0 ? arguments[2] : NULL;
    int at_exit = count == 2 && strcmp(arguments[1], "exit") == 0;
    unsigned long threads = count == 3 && strcmp(arguments[1], "stress") == 0 ? strtoul(arguments[2], NULL, 10) : 0;
    if (!at_exit && names == NULL && (threads == 0 || threads > MOST))
        return 2;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return 1;
    /* What is registered first comes last. */
    if (at_exit)
        atexit(at_the_end);
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    say("ready");
    pthread_t ids[MOST];
    for (unsigned long i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, ask, (void *)i);
    if (fgets(line, sizeof(line), stdin) == NULL)
        return 1;
    if (names != NULL) {
        sweep(names);
        _exit(fgets(line, sizeof(line), stdin) == NULL);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (!at_exit)
        printf("%lu %lu\n", calls, cancelled);
    return 0;
}
