/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The host's pool (host.c) under a driver that only keeps a record of what is page-locked, and complains of what the
 * real one would refuse, or be slow with. Commands come from standard input, one a line; each is answered by a line.
 */
#include "base/clock.h"
#include "base/session.h"
#include "gate/awake.h"
#include "gate/slots.h"
#include "loader/real.h"
#include "memory/host.h"
#include "pool.h"
#include "pool_pages.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PIECES = 1024, MOST_LOCKED = 4096, THREADS = 3 };
#define CONTEXT ((CUcontext)(uintptr_t)16)

/* What host.c needs of the rest of the interposer. */
void *gs_real_table[GS_FN_COUNT];
uint32_t gs_gate_word = GS_GATE_SHUT;

__thread struct gs_slot *gs_gate_thread;
uint32_t gs_awake_shut;

bool gs_awake_try_enter(struct gs_slot **called)
{
    *called = NULL;
    return true;
}

void gs_awake_leave_slow(void)
{
}

uint32_t gs_session_contended(void)
{
    return 1;
}

uint64_t gs_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* --- The driver --- */

static struct {
    pthread_mutex_t lock;
    void *locked[MOST_LOCKED];
    unsigned count;
    void *populated[MOST_LOCKED]; /* since they were last unlocked */
    unsigned populated_count;
    bool refuses;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};
static __thread CUcontext current;

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    printf("broken: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static unsigned find(void *const *addresses, unsigned count, const void *address)
{
    unsigned i = 0;
    while (i < count && addresses[i] != address)
        i++;
    return i;
}

static unsigned find_locked(const void *address)
{
    return find(driver.locked, driver.count, address);
}

static unsigned find_populated(const void *address)
{
    return find(driver.populated, driver.populated_count, address);
}

static void forget_populated(const void *address)
{
    unsigned i = find_populated(address);
    if (i < driver.populated_count)
        driver.populated[i] = driver.populated[--driver.populated_count];
}

static CUresult host_register(void *address, size_t bytes, unsigned flags)
{
    require(current != NULL, "registers without a context");
    require(bytes == GPUSHARE_POOL_CHUNK && flags == CU_MEMHOSTREGISTER_PORTABLE, "registers something else");
    pthread_mutex_lock(&driver.lock);
    if (find_locked(address) < driver.count) {
        /* A move may claim what another had while our thread page-locks it beside that one. */
        pthread_mutex_unlock(&driver.lock);
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    require(find_populated(address) < driver.populated_count, "registers what was not populated");
    require(driver.count < MOST_LOCKED, "registers more than there is");
    bool refuses = driver.refuses;
    if (!refuses)
        driver.locked[driver.count++] = address;
    pthread_mutex_unlock(&driver.lock);
    return refuses ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult host_unregister(void *address)
{
    pthread_mutex_lock(&driver.lock);
    unsigned i = find_locked(address);
    require(i < driver.count, "unregisters what is not registered");
    driver.locked[i] = driver.locked[--driver.count];
    forget_populated(address);
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    require(*mode == CU_STREAM_CAPTURE_MODE_RELAXED, "breaks captures");
    return CUDA_SUCCESS;
}

static void set_up_driver(void)
{
    gs_real_table[GS_FN_cuMemHostRegister_v2] = host_register;
    gs_real_table[GS_FN_cuMemHostUnregister] = host_unregister;
    gs_real_table[GS_FN_cuCtxGetCurrent] = get_current;
    gs_real_table[GS_FN_cuCtxSetCurrent] = set_current;
    gs_real_table[GS_FN_cuThreadExchangeStreamCaptureMode] = exchange_mode;
}

/* --- The system --- */

/* What comes of the next calls that populate. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned until_failure; /* 0: none fails; 1: the next one */
    int error;              /* of that one; with EINVAL of all from then on */
    unsigned company;       /* so many wait for one another, until no other came for 10 s */
    unsigned present;
    bool met;
    int no_large_pages; /* the error of a kernel without; 0: as it is */
    unsigned collapsed; /* calls */
} system_calls = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void meet_locked(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    system_calls.met |= ++system_calls.present >= system_calls.company;
    pthread_cond_broadcast(&system_calls.changed);
    while (!system_calls.met && system_calls.company != 0)
        if (pthread_cond_timedwait(&system_calls.changed, &system_calls.lock, &until) != 0)
            system_calls.company = 0;
    system_calls.present--;
}

static int failure(void)
{
    pthread_mutex_lock(&system_calls.lock);
    if (system_calls.company != 0)
        meet_locked();
    int error = system_calls.until_failure == 1 ? system_calls.error : 0;
    if (system_calls.until_failure > 1 || (error != 0 && error != EINVAL))
        system_calls.until_failure--;
    pthread_mutex_unlock(&system_calls.lock);
    return error;
}

int __real_madvise(void *address, size_t bytes, int advice);

static int collapse(void *address, size_t bytes)
{
    pthread_mutex_lock(&system_calls.lock);
    int error = system_calls.no_large_pages;
    system_calls.collapsed++;
    pthread_mutex_unlock(&system_calls.lock);
    if (error == 0)
        return __real_madvise(address, bytes, MADV_COLLAPSE);
    errno = error;
    return -1;
}

/* Whether the kernel makes large pages. */
static bool makes_large_pages(void)
{
    uint32_t small = 0;
    void *chunk = gpushare_pool_map(-1, 0, GPUSHARE_POOL_CHUNK);
    require(chunk != MAP_FAILED, "there is no memory");
    gpushare_pool_enlarge(chunk, &small);
    munmap(chunk, GPUSHARE_POOL_CHUNK);
    return small == 0;
}

int __wrap_madvise(void *address, size_t bytes, int advice)
{
    if (advice == MADV_COLLAPSE)
        return collapse(address, bytes);
    /* Of large pages a byte is populated first. */
    if (advice != MADV_POPULATE_WRITE || bytes == 1)
        return __real_madvise(address, bytes, advice);
    require(bytes == GPUSHARE_POOL_CHUNK, "populates something else");
    int error = failure(), result = 0;
    if (error == 0)
        result = __real_madvise(address, bytes, advice);
    if (result == 0 && (error == 0 || error == EINVAL)) {
        pthread_mutex_lock(&driver.lock);
        if (find_populated(address) == driver.populated_count) {
            require(driver.populated_count < MOST_LOCKED, "populates more than there is");
            driver.populated[driver.populated_count++] = address;
        }
        pthread_mutex_unlock(&driver.lock);
    }
    if (error == 0)
        return result;
    errno = error;
    return -1;
}

/* --- Pieces and their contents --- */

static void fill(const struct gs_host_piece *piece, uint64_t value)
{
    const struct gs_host_extent *extents;
    unsigned count = gs_host_extents(piece, &extents);
    /* A word in each page will do. */
    for (unsigned e = 0; e < count; e++)
        for (size_t offset = 0; offset + sizeof(value) <= extents[e].bytes; offset += 4096)
            *(volatile uint64_t *)((char *)extents[e].address + offset) = value + offset;
}

static bool holds(const struct gs_host_piece *piece, uint64_t value)
{
    const struct gs_host_extent *extents;
    unsigned count = gs_host_extents(piece, &extents);
    bool equal = true;
    for (unsigned e = 0; e < count; e++)
        for (size_t offset = 0; offset + sizeof(value) <= extents[e].bytes; offset += 4096)
            equal = equal && *(volatile uint64_t *)((char *)extents[e].address + offset) == value + offset;
    return equal;
}

/* --- Several threads at once --- */

static bool stopped;

static void *take_and_give(void *argument)
{
    unsigned seed = *(const unsigned *)argument;
    struct gs_host_piece *pieces[8] = {NULL};
    uint64_t values[8] = {0};
    current = CONTEXT;
    while (!__atomic_load_n(&stopped, __ATOMIC_ACQUIRE)) {
        unsigned i = (unsigned)rand_r(&seed) % 8;
        if (pieces[i] != NULL) {
            require(holds(pieces[i], values[i]), "another's bytes");
            gs_host_return(pieces[i]);
            pieces[i] = NULL;
        } else if ((pieces[i] = gs_host_take(1 + (size_t)rand_r(&seed) % (48u << 20))) != NULL) {
            values[i] = (uint64_t)(unsigned)rand_r(&seed) << 32;
            fill(pieces[i], values[i]);
        }
        if (rand_r(&seed) % 64 == 0)
            gs_host_prepare((uint64_t)(rand_r(&seed) % 8) * GPUSHARE_POOL_CHUNK, CONTEXT);
        if (rand_r(&seed) % 256 == 0)
            gs_host_context_ends(CONTEXT);
        if (rand_r(&seed) % 16 == 0)
            usleep(20000);
    }
    for (unsigned i = 0; i < 8; i++) {
        if (pieces[i] == NULL)
            continue;
        require(holds(pieces[i], values[i]), "another's bytes, at the end");
        gs_host_return(pieces[i]);
    }
    return NULL;
}

/* Until the next line comes. */
static void stress(unsigned seed)
{
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    char line[16];
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = seed * THREADS + i;
        require(pthread_create(&threads[i], NULL, take_and_give, &seeds[i]) == 0, "no threads");
    }
    require(fgets(line, sizeof(line), stdin) != NULL, "not told to stop");
    __atomic_store_n(&stopped, true, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* --- Commands --- */

static bool maps_a_pool(void)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    require(maps != NULL, "no maps");
    while (fgets(line, sizeof(line), maps) != NULL)
        found = found || strstr(line, "memfd:pool") != NULL;
    fclose(maps);
    return found;
}

/* The child has nothing of ours, and can have memory of its own. */
static int in_child(void)
{
    if (maps_a_pool())
        return 3;
    gs_host_after_fork();
    bool empty = gs_host_bytes() == 0 && gs_host_page_locked_late() == 0;
    driver.count = 0;
    struct gs_host_piece *piece = gs_host_take(1 << 20);
    if (!empty || piece == NULL)
        return 1;
    fill(piece, 77);
    return holds(piece, 77) ? 0 : 2;
}

static struct gs_host_piece *pieces[MOST_PIECES];

static void carry_out(const char *word, uint64_t first, uint64_t second, double number)
{
    if (strcmp(word, "offer") == 0) {
        gs_host_offer((int)number < 0 ? -1 : dup((int)number), (uint32_t)second);
        printf("ok\n");
    } else if (strcmp(word, "take") == 0) {
        unsigned i = 0;
        while (pieces[i] != NULL)
            i++;
        require(i < MOST_PIECES, "too many pieces");
        pieces[i] = gs_host_take(first);
        if (pieces[i] == NULL) {
            printf("none\n");
            return;
        }
        fill(pieces[i], second << 32);
        const struct gs_host_extent *extents;
        unsigned count = gs_host_extents(pieces[i], &extents);
        printf("%u", i);
        for (unsigned e = 0; e < count; e++)
            printf(" %zu", extents[e].bytes);
        printf("\n");
    } else if (strcmp(word, "holds") == 0) {
        printf("%d\n", holds(pieces[first], second << 32));
    } else if (strcmp(word, "give") == 0) {
        gs_host_return(pieces[first]);
        pieces[first] = NULL;
        printf("ok\n");
    } else if (strcmp(word, "prepare") == 0) {
        gs_host_prepare(first, CONTEXT);
        printf("ok\n");
    } else if (strcmp(word, "gate") == 0) {
        __atomic_store_n(&gs_gate_word, (uint32_t)first, __ATOMIC_RELAXED);
        printf("ok\n");
    } else if (strcmp(word, "refuse") == 0) {
        driver.refuses = first != 0;
        printf("ok\n");
    } else if (strcmp(word, "fail_populating") == 0) {
        pthread_mutex_lock(&system_calls.lock);
        system_calls.until_failure = (unsigned)first;
        system_calls.error = (int)second;
        pthread_mutex_unlock(&system_calls.lock);
        printf("ok\n");
    } else if (strcmp(word, "makes_large_pages") == 0) {
        printf("%d\n", makes_large_pages());
    } else if (strcmp(word, "no_large_pages") == 0) {
        pthread_mutex_lock(&system_calls.lock);
        system_calls.no_large_pages = (int)first;
        printf("%u\n", system_calls.collapsed);
        pthread_mutex_unlock(&system_calls.lock);
    } else if (strcmp(word, "company") == 0) {
        pthread_mutex_lock(&system_calls.lock);
        printf("%d\n", system_calls.met);
        system_calls.company = (unsigned)first;
        system_calls.met = false;
        pthread_mutex_unlock(&system_calls.lock);
    } else if (strcmp(word, "end_context") == 0) {
        gs_host_context_ends(CONTEXT);
        printf("ok\n");
    } else if (strcmp(word, "figures") == 0) {
        pthread_mutex_lock(&driver.lock);
        unsigned locked = driver.count;
        pthread_mutex_unlock(&driver.lock);
        printf("%llu %llu %u\n", (unsigned long long)gs_host_bytes(), (unsigned long long)gs_host_page_locked_late(),
               locked);
    } else if (strcmp(word, "fork") == 0) {
        require(maps_a_pool(), "forks without a pool");
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(in_child());
        require(waitpid(child, &status, 0) == child, "no child");
        printf("%d\n", status);
    } else if (strcmp(word, "stress") == 0) {
        stress((unsigned)number);
        printf("ok\n");
    } else {
        require(false, "an unknown command");
    }
}

int main(void)
{
    char line[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    set_up_driver();
    current = CONTEXT;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char word[32] = "";
        double first = 0, second = 0;
        sscanf(line, "%31s %lf %lf", word, &first, &second);
        carry_out(word, first < 0 ? 0 : (uint64_t)first, (uint64_t)second, first);
    }
    return 0;
}
