/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA program with which `gpushare bench` measures. It finds the driver like any program, so it runs with and
 * without the interposer preloaded. All times are CLOCK_MONOTONIC in nanoseconds.
 *
 * It is a library that a Python process loads, because a library can be built for old systems where a program cannot.
 *
 *   probe MODULE launch COUNT GAP_NS
 *       Launches an empty CUDA kernel COUNT times, GAP_NS apart. Prints "<ns per launch>".
 *   probe MODULE slab LIVE COUNT
 *       With LIVE blocks of 512 B to 64 KiB allocated, frees one and allocates another, COUNT times. Prints "<ns per
 *       free and allocation>".
 *   probe MODULE ordered PENDING COUNT
 *       Allocates and frees 4 KiB in the order of a busy stream, COUNT times, with PENDING frees before them. Prints
 *       "<ns per allocation and free>".
 *   probe MODULE hops COUNT GAP_NS OUT IN
 *       Sends a message to the socket OUT and waits until another thread has read it from the socket IN, COUNT times,
 *       GAP_NS apart. Prints "<ns>" for each.
 *   probe MODULE serve
 *       Carries out commands from standard input, one on each line, and answers each:
 *
 *     alloc BYTES          "ok"
 *     touch                writes to the memory: "<start> <end>"
 *     loop SECONDS GAP_US  launches continually; then, for each launch that took more than 5 ms, a line "<end of the
 *                          launch before> <end>", and at last "done <launches> <end of the last>"
 *     cell                 tells the interposer that the cell ended: "<time>"
 *     kernel               one launch and its end: "<start> <end of the launch>"
 *     check                compares the memory with what touch wrote: "equal" or "different"
 *     fork                 leaves a sleeping child process: "<pid>"
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The only types that are needed. */
typedef unsigned long long address;
typedef int (*launch_function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                               void **, void **);

/* An empty CUDA kernel for a real driver. The simulated driver loads MODULE instead. */
static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";

enum { WAITED_NS = 5000000, MOST_WAITS = 4096 };

static void *driver;
static void *kernel;
static launch_function launch;
static address memory;
static size_t memory_bytes;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *symbol(const char *name)
{
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "probe: the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void require(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "probe: %s: CUDA error %d\n", what, result);
    exit(1);
}

static void set_up(const char *path)
{
    void *context, *module;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "probe: %s\n", dlerror());
        exit(1);
    }
    require(((int (*)(unsigned))symbol("cuInit"))(0), "cuInit");
    require(((int (*)(void **, int))symbol("cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    require(((int (*)(void *))symbol("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    if (((int (*)(void **, const void *))symbol("cuModuleLoadData"))(&module, ptx) != 0)
        require(((int (*)(void **, const char *))symbol("cuModuleLoad"))(&module, path), "cuModuleLoad");
    require(((int (*)(void **, void *, const char *))symbol("cuModuleGetFunction"))(&kernel, module, "empty"),
            "cuModuleGetFunction");
    launch = (launch_function)symbol("cuLaunchKernel");
}

static void launch_once(void)
{
    require(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void synchronize(void)
{
    require(((int (*)(void))symbol("cuCtxSynchronize"))(), "cuCtxSynchronize");
}

/*
 * With a gap, only the calls are timed. Without one, the whole loop is, because reading the clock takes as long as a
 * call.
 */
static void time_launches(unsigned long count, unsigned long gap)
{
    launch_once();
    uint64_t begin = now(), spent = 0;
    for (unsigned long i = 0; i < count; i++) {
        uint64_t before = 0;
        if (gap != 0) {
            for (uint64_t until = now() + gap; before < until;)
                before = now();
        }
        launch_once();
        if (gap != 0)
            spent += now() - before;
    }
    if (gap == 0)
        spent = now() - begin;
    synchronize();
    printf("%.3f\n", (double)spent / (double)count);
}

/* --- The cost of any hand-off by a third process: only its messages and wake-ups --- */

enum { HOP_BYTES = 32 };

static uint32_t hops_done;

/* Works like the interposer's helper: polls, reads, and wakes the waiting thread. */
static void *receive_hops(void *descriptor)
{
    int in = *(const int *)descriptor;
    char message[HOP_BYTES];
    struct pollfd readable = {.fd = in, .events = POLLIN};
    while (poll(&readable, 1, -1) > 0 && recv(in, message, sizeof(message), MSG_DONTWAIT) > 0) {
        __atomic_add_fetch(&hops_done, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &hops_done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    return NULL;
}

static void time_hops(unsigned long count, unsigned long gap, int out, int in)
{
    pthread_t receiver;
    char message[HOP_BYTES] = "";
    struct timespec pause = {.tv_sec = (time_t)(gap / 1000000000), .tv_nsec = (long)(gap % 1000000000)};
    require(pthread_create(&receiver, NULL, receive_hops, &in), "pthread_create");
    for (uint32_t i = 0; i < count; i++) {
        nanosleep(&pause, NULL);
        uint64_t begin = now();
        if (send(out, message, sizeof(message), MSG_NOSIGNAL) != sizeof(message))
            require(1, "send");
        while (__atomic_load_n(&hops_done, __ATOMIC_ACQUIRE) == i)
            syscall(SYS_futex, &hops_done, FUTEX_WAIT_PRIVATE, i, NULL, NULL, 0);
        printf("%llu\n", (unsigned long long)(now() - begin));
    }
    shutdown(in, SHUT_RDWR);
    pthread_join(receiver, NULL);
}

/* All orders of magnitude are equally likely. Each run has the same sizes in the same order. */
static size_t block_size(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t octave = (size_t)512 << (*random >> 33) % 7;
    return octave + (size_t)(*random >> 40) % octave;
}

static void time_blocks(unsigned long live, unsigned long count)
{
    int (*alloc)(address *, size_t) = symbol("cuMemAlloc_v2");
    int (*release)(address) = symbol("cuMemFree_v2");
    uint64_t random = 1;
    address *blocks = calloc(live, sizeof(*blocks));
    if (blocks == NULL || live == 0 || count == 0)
        require(2, "slab LIVE COUNT");
    for (unsigned long i = 0; i < live; i++)
        require(alloc(&blocks[i], block_size(&random)), "cuMemAlloc");
    uint64_t begin = now();
    for (unsigned long i = 0; i < count; i++) {
        size_t size = block_size(&random);
        address *block = &blocks[(random >> 20) % live];
        require(release(*block), "cuMemFree");
        require(alloc(block, size), "cuMemAlloc");
    }
    printf("%.3f\n", (double)(now() - begin) / (double)count);
    free(blocks);
}

static void wait_until_set(void *flag)
{
    while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void time_ordered(unsigned long pending, unsigned long count)
{
    int (*alloc)(address *, size_t, void *) = symbol("cuMemAllocAsync");
    int (*release)(address, void *) = symbol("cuMemFreeAsync");
    int (*call)(void *, void (*)(void *), void *) = symbol("cuLaunchHostFunc");
    enum { NON_BLOCKING = 1, BYTES = 4096 };
    void *stream;
    int done = 0;
    address block;
    uint64_t begin = 0;
    if (count == 0)
        require(2, "ordered PENDING COUNT");
    require(((int (*)(void **, unsigned))symbol("cuStreamCreate"))(&stream, NON_BLOCKING), "cuStreamCreate");
    require(call(stream, wait_until_set, &done), "cuLaunchHostFunc");
    for (unsigned long i = 0; i < pending + count; i++) {
        if (i == pending)
            begin = now();
        require(alloc(&block, BYTES, stream), "cuMemAllocAsync");
        require(release(block, stream), "cuMemFreeAsync");
    }
    printf("%.3f\n", (double)(now() - begin) / (double)count);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    synchronize();
}

static void loop(double seconds, unsigned gap_us)
{
    static uint64_t waits[MOST_WAITS][2];
    unsigned waited = 0;
    unsigned long launches = 0;
    uint64_t end = now() + (uint64_t)(seconds * 1e9), last = now();
    while (last < end) {
        uint64_t before = now();
        launch_once();
        uint64_t after = now();
        launches++;
        if (after - before > WAITED_NS && waited < MOST_WAITS) {
            waits[waited][0] = last;
            waits[waited++][1] = after;
        }
        last = after;
        if (gap_us != 0)
            usleep(gap_us);
    }
    for (unsigned i = 0; i < waited; i++)
        printf("%llu %llu\n", (unsigned long long)waits[i][0], (unsigned long long)waits[i][1]);
    printf("done %lu %llu\n", launches, (unsigned long long)last);
}

static int intact(void)
{
    int (*copy)(void *, address, size_t) = (int (*)(void *, address, size_t))symbol("cuMemcpyDtoH_v2");
    unsigned char *host = malloc(memory_bytes);
    if (host == NULL)
        return 0;
    require(copy(host, memory, memory_bytes), "cuMemcpyDtoH");
    size_t i = 0;
    while (i < memory_bytes && host[i] == 1)
        i++;
    free(host);
    return i == memory_bytes;
}

/* The child closes all descriptors except those that CUDA and the interposer have opened. */
static pid_t leave_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        sleep(20);
        _exit(0);
    }
    return child;
}

static void serve(void)
{
    char line[256];
    int (*alloc)(address *, size_t) = symbol("cuMemAlloc_v2");
    int (*set)(address, unsigned char, size_t) = symbol("cuMemsetD8_v2");
    void (*cell_end)(const char *) = dlsym(driver, "gpushare_cell_end");
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char word[32] = "";
        double first = 0;
        unsigned second = 0;
        sscanf(line, "%31s %lf %u", word, &first, &second);
        if (strcmp(word, "alloc") == 0) {
            memory_bytes = (size_t)first;
            require(alloc(&memory, memory_bytes), "cuMemAlloc");
            printf("ok\n");
        } else if (strcmp(word, "touch") == 0) {
            uint64_t before = now();
            require(set(memory, 1, memory_bytes), "cuMemsetD8");
            printf("%llu %llu\n", (unsigned long long)before, (unsigned long long)now());
        } else if (strcmp(word, "loop") == 0) {
            loop(first, second);
        } else if (strcmp(word, "cell") == 0) {
            uint64_t time = now();
            if (cell_end != NULL)
                cell_end("bench");
            printf("%llu\n", (unsigned long long)time);
        } else if (strcmp(word, "kernel") == 0) {
            uint64_t before = now();
            launch_once();
            uint64_t after = now();
            synchronize();
            printf("%llu %llu\n", (unsigned long long)before, (unsigned long long)after);
        } else if (strcmp(word, "check") == 0) {
            printf("%s\n", intact() ? "equal" : "different");
        } else if (strcmp(word, "fork") == 0) {
            printf("%d\n", (int)leave_child());
        } else {
            fprintf(stderr, "probe: unknown command: %s", line);
            exit(2);
        }
    }
}

__attribute__((visibility("default"))) int gpushare_probe(int count, char **arguments)
{
    if (count == 7 && strcmp(arguments[2], "hops") == 0) {
        time_hops(strtoul(arguments[3], NULL, 10), strtoul(arguments[4], NULL, 10), atoi(arguments[5]),
                  atoi(arguments[6]));
        return 0;
    }
    if (count == 5 && strcmp(arguments[2], "launch") == 0) {
        set_up(arguments[1]);
        time_launches(strtoul(arguments[3], NULL, 10), strtoul(arguments[4], NULL, 10));
    } else if (count == 5 && strcmp(arguments[2], "slab") == 0) {
        set_up(arguments[1]);
        time_blocks(strtoul(arguments[3], NULL, 10), strtoul(arguments[4], NULL, 10));
    } else if (count == 5 && strcmp(arguments[2], "ordered") == 0) {
        set_up(arguments[1]);
        time_ordered(strtoul(arguments[3], NULL, 10), strtoul(arguments[4], NULL, 10));
    } else if (count == 3 && strcmp(arguments[2], "serve") == 0) {
        set_up(arguments[1]);
        serve();
    } else {
        fprintf(stderr,
                "usage: probe MODULE launch COUNT GAP_NS | MODULE slab LIVE COUNT | MODULE ordered PENDING COUNT | "
                "MODULE hops COUNT GAP_NS OUT IN | MODULE serve\n");
        return 2;
    }
    return 0;
}
