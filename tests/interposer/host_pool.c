/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The host's pool (host.c) under a driver that only keeps a record of what is page-locked, and complains of what the
 * real one would refuse, or be slow with. Commands come from standard input, one a line; each is answered by a line.
 */
#include "base/clock.h"
#include "base/session.h"
#include "digest.h"
#include "gate/awake.h"
#include "gate/slots.h"
#include "loader/real.h"
#include "memory/host.h"
#include "memory/host_ahead.h"
#include "memory/host_disk.h"
#include "memory/host_state.h"
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

enum { MOST_PIECES = 1024, MOST_LOCKED = 4096, THREADS = 3, MOST_UNITS = 32, MOST_DATA = 64 };
#define UNIT ((size_t)GPUSHARE_POOL_UNIT)
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

bool gs_real_has(enum gs_fn_index function)
{
    (void)function;
    return true;
}

uint32_t gs_session_contended(void)
{
    return 1;
}

static uint64_t ahead_ns; /* of the real time */

/* The linker has these called instead of gs_cond_timedwait_at, and that as the other. */
void __real_gs_cond_timedwait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until,
                                 const char *place);
void __wrap_gs_cond_timedwait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until,
                                 const char *place);
void __wrap_gs_cond_timedwait_at(pthread_cond_t *cond, struct gs_mutex *mutex, const struct timespec *until,
                                 const char *place)
{
    struct timespec real = {.tv_sec =
                                until->tv_sec - (time_t)(__atomic_load_n(&ahead_ns, __ATOMIC_RELAXED) / 1000000000),
                            .tv_nsec = until->tv_nsec};
    __real_gs_cond_timedwait_at(cond, mutex, &real, place);
}

uint64_t gs_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + __atomic_load_n(&ahead_ns, __ATOMIC_RELAXED);
}

/* --- The driver --- */

static struct {
    pthread_mutex_t lock;
    void *locked[MOST_LOCKED];
    unsigned count;
    void *populated[MOST_LOCKED]; /* since they were last unlocked */
    unsigned populated_count;
    bool refuses, refuses_to_unlock;
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
    if (driver.refuses_to_unlock) {
        pthread_mutex_unlock(&driver.lock);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    driver.locked[i] = driver.locked[--driver.count];
    forget_populated(address);
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

/* Without this memory no ring can be made (staging.h), so host.c page-locks what it reads. */
static CUresult host_alloc(void **address, size_t bytes, unsigned flags)
{
    (void)address;
    (void)bytes;
    (void)flags;
    return CUDA_ERROR_OUT_OF_MEMORY;
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
    gs_real_table[GS_FN_cuMemHostAlloc] = host_alloc;
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

static void fill(const struct gs_host_record *record, uint64_t value)
{
    struct gs_host_extent extent;
    /* A word in each page will do. */
    for (unsigned next = 0; gs_host_next(record, false, &next, &extent);)
        for (size_t offset = 0; offset + sizeof(value) <= extent.bytes; offset += 4096)
            *(volatile uint64_t *)((char *)extent.address + offset) = value + extent.offset + offset;
}

static bool holds(const struct gs_host_record *record, uint64_t value)
{
    struct gs_host_extent extent;
    bool equal = true;
    for (unsigned next = 0; gs_host_next(record, true, &next, &extent);)
        for (size_t offset = 0; offset + sizeof(value) <= extent.bytes; offset += 4096)
            equal = equal && *(volatile uint64_t *)((char *)extent.address + offset) == value + extent.offset + offset;
    return equal;
}

/* Evicts data without digests. NULL: there is no room. */
static struct gs_host_record *take(size_t bytes, uint64_t value)
{
    const struct gs_host_digests unknown = {0};
    struct gs_host_summary summary;
    struct gs_host_record *record = gs_host_record_new(bytes);
    require(record != NULL, "there is no memory");
    if (!gs_host_take(record, &unknown, &summary)) {
        gs_host_record_free(record);
        return NULL;
    }
    fill(record, value);
    gs_host_publish(record, &unknown);
    return record;
}

/* --- Data with digests --- */

/* The data of a piece: each unit has one of few values, so that data is often equal. 0 is zeros. */
struct datum {
    struct gs_host_record *record;
    size_t bytes;
    unsigned units;
    uint32_t values[MOST_UNITS];
    bool evicted;
};

static size_t unit_bytes(const struct datum *datum, unsigned u)
{
    return u + 1 < datum->units ? UNIT : datum->bytes - u * UNIT;
}

/* No real digest, but as good as one: of units with other values or sizes, it differs. */
static struct gpushare_digest digest_of(const struct datum *datum, unsigned u)
{
    uint64_t seed = datum->values[u] * UINT64_C(0x9e3779b97f4a7c15) + unit_bytes(datum, u);
    return (struct gpushare_digest){.words = {seed, seed >> 7, seed * 3, seed * 5}, .any = datum->values[u] != 0};
}

/* Writes or compares what is in an extent of the piece. */
static bool visit(const struct datum *datum, const struct gs_host_extent *extent, bool writes)
{
    bool equal = true;
    for (size_t offset = 0; offset + sizeof(uint64_t) <= extent->bytes; offset += 4096) {
        size_t at = extent->offset + offset;
        uint64_t value = ((uint64_t)datum->values[at / UNIT] << 32) + at % UNIT;
        volatile uint64_t *word = (volatile uint64_t *)((char *)extent->address + offset);
        if (writes)
            *word = value;
        else
            equal = equal && *word == value;
    }
    return equal;
}

static bool has_data(const struct datum *datum)
{
    struct gs_host_extent extent;
    bool equal = true;
    for (unsigned next = 0; gs_host_next(datum->record, true, &next, &extent);) {
        if (extent.address != NULL)
            equal = equal && visit(datum, &extent, false);
        for (unsigned u = (unsigned)(extent.offset / UNIT); extent.address == NULL && u < next; u++)
            equal = equal && datum->values[u] == 0;
    }
    return equal;
}

/* `hashes`: whether digests are used; `fails`: whether the copies fail. False: there is no room. */
static bool evict(struct datum *datum, bool hashes, bool fails, struct gs_host_summary *summary)
{
    uint64_t key[4];
    struct gpushare_digest digests_of_units[MOST_UNITS];
    struct gs_host_digests digests = {.of_units = hashes ? digests_of_units : NULL};
    require(gs_host_key(key, &digests.pool), "there is no pool");
    for (unsigned u = 0; u < datum->units; u++)
        digests_of_units[u] = digest_of(datum, u);
    if (datum->record == NULL)
        require((datum->record = gs_host_record_new(datum->bytes)) != NULL, "there is no memory");
    if (!gs_host_take(datum->record, &digests, summary))
        return false;
    struct gs_host_extent extent;
    for (unsigned next = 0; gs_host_next(datum->record, false, &next, &extent);)
        visit(datum, &extent, true);
    if (fails) {
        gs_host_release(datum->record);
        return true;
    }
    gs_host_publish(datum->record, &digests);
    datum->evicted = true;
    require(has_data(datum), "other data than was evicted");
    return true;
}

/* Waits until all of it is in memory, as a restore does. */
static void await_memory(const struct datum *datum)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    enum gs_host_where where;
    for (unsigned waited = 0;; waited++) {
        pthread_mutex_lock(&lock);
        where = gs_host_where(datum->record);
        pthread_mutex_unlock(&lock);
        if (where == GS_HOST_HERE)
            return;
        require(waited < 60000, "the data does not come from the disk");
        usleep(1000);
    }
}

static void restore(struct datum *datum)
{
    await_memory(datum);
    gs_host_prepare_reading(datum->record);
    require(has_data(datum), "other data than was evicted, at the restore");
    gs_host_release(datum->record);
    datum->evicted = false;
}

static void drop(struct datum *datum)
{
    if (datum->record != NULL)
        gs_host_record_free(datum->record);
    *datum = (struct datum){0};
}

static void change_some(struct datum *datum, unsigned *seed)
{
    if (datum->units == 0) {
        datum->bytes = (1 + (size_t)rand_r(seed) % MOST_UNITS) * UNIT - (rand_r(seed) % 8 == 0 ? UNIT / 2 : 0);
        datum->units = (unsigned)((datum->bytes + UNIT - 1) / UNIT);
        for (unsigned u = 0; u < datum->units; u++)
            datum->values[u] = (uint32_t)rand_r(seed) % 32;
    }
    for (unsigned u = 0; u < datum->units; u++)
        if (rand_r(seed) % 8 == 0)
            datum->values[u] = (uint32_t)rand_r(seed) % 32;
}

/* --- Several threads at once --- */

static bool stopped;
/* The threads rest, so that data can go to a disk meanwhile. */
static bool rests;

static void *move(void *argument)
{
    unsigned seed = *(const unsigned *)argument;
    /* Only one thread evicts in orders, as the helper does. */
    bool mover = seed % THREADS == 0, expecting = false;
    struct datum data[6] = {0};
    struct gs_host_summary summary;
    current = CONTEXT;
    while (!__atomic_load_n(&stopped, __ATOMIC_ACQUIRE)) {
        struct datum *datum = &data[(unsigned)rand_r(&seed) % 6];
        if (rests)
            usleep((unsigned)rand_r(&seed) % 100000);
        gs_host_begin_moving();
        if (rand_r(&seed) % 16 == 0) {
            drop(datum);
        } else if (datum->evicted) {
            restore(datum);
        } else {
            change_some(datum, &seed);
            evict(datum, rand_r(&seed) % 4 != 0, rand_r(&seed) % 8 == 0, &summary);
        }
        gs_host_end_moving();
        if (rand_r(&seed) % 64 == 0)
            gs_host_prepare((uint64_t)(rand_r(&seed) % 8) * GPUSHARE_POOL_CHUNK, CONTEXT);
        if (rand_r(&seed) % 256 == 0)
            gs_host_context_ends(CONTEXT);
        if (mover && rand_r(&seed) % 8 == 0) {
            if (expecting)
                gs_host_expect_no_more();
            else
                gs_host_expect((uint64_t)(rand_r(&seed) % 8) * GPUSHARE_POOL_CHUNK, CONTEXT);
            expecting = !expecting;
        }
        if (rand_r(&seed) % 64 == 0)
            usleep(20000);
    }
    if (expecting)
        gs_host_expect_no_more();
    gs_host_begin_moving();
    for (unsigned i = 0; i < 6; i++) {
        if (data[i].evicted)
            restore(&data[i]);
        drop(&data[i]);
    }
    gs_host_end_moving();
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
        require(pthread_create(&threads[i], NULL, move, &seeds[i]) == 0, "no threads");
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
    struct gs_host_record *piece = take(1 << 20, 77);
    if (!empty || piece == NULL)
        return 1;
    return holds(piece, 77) ? 0 : 2;
}

static struct gs_host_record *pieces[MOST_PIECES];

static struct datum data[MOST_DATA];

/* `evict I VALUE ...`: answers with how many units are zeros, the same as before, shared and written. */
static void evict_values(const char *line)
{
    int length = 0, i = 0;
    struct gs_host_summary summary;
    require(sscanf(line, "evict %d%n", &i, &length) == 1 && i < MOST_DATA, "evicts nothing");
    struct datum *datum = &data[i];
    datum->units = 0;
    for (line += length; sscanf(line, "%u%n", &datum->values[datum->units], &length) == 1; line += length)
        require(++datum->units < MOST_UNITS, "evicts too much");
    datum->bytes = datum->units * UNIT;
    if (evict(datum, true, false, &summary))
        printf("%u %u %u %u\n", summary.zero, summary.same, summary.shared, summary.written);
    else
        printf("none\n");
}

static unsigned busy_after; /* so many questions; 0: never */

static bool is_busy(void)
{
    return busy_after != 0 && --busy_after == 0;
}

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
        pieces[i] = take(first, second << 32);
        if (pieces[i] == NULL) {
            printf("none\n");
            return;
        }
        struct gs_host_extent extent;
        printf("%u", i);
        for (unsigned next = 0; gs_host_next(pieces[i], true, &next, &extent);)
            printf(" %zu", extent.bytes);
        printf("\n");
    } else if (strcmp(word, "restore") == 0) {
        restore(&data[first]);
        printf("ok\n");
    } else if (strcmp(word, "drop") == 0) {
        drop(&data[first]);
        printf("ok\n");
    } else if (strcmp(word, "has_data") == 0) {
        printf("%d\n", has_data(&data[first]));
    } else if (strcmp(word, "shared") == 0) {
        gs_host_count_shared();
        printf("%llu\n", (unsigned long long)(gs_host_shared() / UNIT));
    } else if (strcmp(word, "holds") == 0) {
        printf("%d\n", holds(pieces[first], second << 32));
    } else if (strcmp(word, "give") == 0) {
        gs_host_record_free(pieces[first]);
        pieces[first] = NULL;
        printf("ok\n");
    } else if (strcmp(word, "prepare") == 0) {
        gs_host_prepare(first, CONTEXT);
        printf("ok\n");
    } else if (strcmp(word, "away") == 0) {
        gs_host_set_away(first != 0);
        printf("ok\n");
    } else if (strcmp(word, "rest") == 0) {
        busy_after = (unsigned)first;
        printf("%d\n", gs_host_rest(is_busy));
    } else if (strcmp(word, "later") == 0) {
        __atomic_add_fetch(&ahead_ns, first * 1000000000, __ATOMIC_RELAXED);
        gs_mutex_lock(&gs_host.lock);
        pthread_cond_broadcast(&gs_host.changed);
        gs_mutex_unlock(&gs_host.lock);
        printf("ok\n");
    } else if (strcmp(word, "expect") == 0) {
        gs_host_expect(first, CONTEXT);
        printf("ok\n");
    } else if (strcmp(word, "expect_no_more") == 0) {
        gs_host_expect_no_more();
        printf("ok\n");
    } else if (strcmp(word, "gate") == 0) {
        __atomic_store_n(&gs_gate_word, (uint32_t)first, __ATOMIC_RELAXED);
        printf("ok\n");
    } else if (strcmp(word, "refuse") == 0) {
        driver.refuses = first != 0;
        printf("ok\n");
    } else if (strcmp(word, "refuse_to_unlock") == 0) {
        pthread_mutex_lock(&driver.lock);
        driver.refuses_to_unlock = first != 0;
        pthread_mutex_unlock(&driver.lock);
        printf("ok\n");
    } else if (strcmp(word, "moving") == 0) {
        (first != 0 ? gs_host_begin_moving : gs_host_end_moving)();
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
        rests = second != 0;
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
        if (strcmp(word, "evict") == 0)
            evict_values(line);
        else
            carry_out(word, first < 0 ? 0 : (uint64_t)first, (uint64_t)second, first);
    }
    return 0;
}
