/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What happens to a program that shares the GPU, at a line of its own: its memory is taken, the scheduler does not
 * answer, it is asked what the program is charged with. Where the driver is bare, these lines do nothing.
 */
#include "player.h"
#include "protocol.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPLY = 1 << 20, PAGE = 2 << 20, HERD = 8 };

static struct {
    int64_t (*control)(const char *request, char *reply, size_t size); /* NULL: there is none */
    const char *(*group)(void);
    int (*own_memory)(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);
    void (*cell_begin)(const char *name);
    void (*cell_end)(const char *name);
} scheduler;

void find_scheduler(void)
{
    scheduler.control = (int64_t (*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "gpushare_control");
    scheduler.group = (const char *(*)(void))dlsym(RTLD_DEFAULT, "gpushare_group");
    scheduler.own_memory =
        (int (*)(const uint8_t[16], uint64_t *, uint64_t *))dlsym(RTLD_DEFAULT, "gpushare_own_memory");
    scheduler.cell_begin = (void (*)(const char *))dlsym(RTLD_DEFAULT, "gpushare_cell_begin");
    scheduler.cell_end = (void (*)(const char *))dlsym(RTLD_DEFAULT, "gpushare_cell_end");
}

/* The scheduler's answer; to be freed. NULL: it does not answer, or refuses. */
static char *ask(const char *operation)
{
    char *reply = malloc(REPLY), request[300];
    snprintf(request, sizeof request, "{\"op\": \"%s\", \"group\": \"%s\", \"protocol\": %d}", operation,
             scheduler.group(), GPUSHARE_CONTROL_VERSION);
    if (reply != NULL && scheduler.control(request, reply, REPLY) >= 0 && strncmp(reply, "{\"ok\":true", 10) == 0)
        return reply;
    free(reply);
    return NULL;
}

/* The number that follows a name, or 0. */
static uint64_t number_after(const char *text, const char *name)
{
    text = text != NULL ? strstr(text, name) : NULL;
    return text != NULL ? strtoull(text + strlen(name) + strspn(text + strlen(name), "\": "), NULL, 10) : 0;
}

/* The program has no lease, and if `all`, nothing on a GPU. */
static bool has_left(bool all)
{
    char *reply = ask("status"), group[160];
    char *at = reply != NULL ? strstr(reply, "\"groups\"") : NULL;
    snprintf(group, sizeof group, "\"%s\"", scheduler.group());
    at = at != NULL ? strstr(at, group) : NULL;
    char *end = at != NULL ? strstr(at, "\"clients\"") : NULL;
    if (end != NULL)
        *end = '\0';
    bool left = end == NULL || strstr(at, "\"state\":\"idle\"") != NULL;
    while (all && left && end != NULL && (at = strstr(at, "\"resident\"")) != NULL)
        left = number_after(at++, "\"resident\"") == 0;
    free(reply);
    return left;
}

/* What the program is charged with, contexts included. */
static uint64_t charged_on(int device)
{
    uint64_t footprint = 0, total;
    CUuuid uuid;
    bool known = driver_cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS &&
                 scheduler.own_memory((const uint8_t *)uuid.bytes, &footprint, &total) != 0;
    return known ? footprint : 0;
}

static uint64_t part_of_gpu(unsigned part, uint64_t least, uint64_t most)
{
    size_t total = 0;
    driver_cuDeviceTotalMem(&total, 0);
    uint64_t bytes = total / part < least ? least : total / part;
    return bytes < most ? bytes : most;
}

/* A context is admitted with that. */
static uint64_t context_bytes(void)
{
    return part_of_gpu(64, 0, 512 << 20);
}

/* Small blocks share memory of that size, and each context keeps two of these for what is to come. */
static uint64_t spare_bytes(void)
{
    return 2 * ((part_of_gpu(256, PAGE, 32 << 20) + PAGE - 1) / PAGE * PAGE);
}

/*
 * evict WAY: the lease is given back (0), or all memory of the program leaves the GPU: while it goes on (1), or before
 * it goes on (2 and 3)
 */
static void op_evict(struct self *self, const unsigned long long *n)
{
    note(self, " asked");
    if (scheduler.control == NULL)
        return;
    unsigned way = (unsigned)(n[0] % 4);
    free(ask(way == 0 ? "release" : "evict"));
    /* Threads that go on take it back at once, perhaps before it is seen here. To ask takes the scheduler long. */
    for (useconds_t pause = 1000; way > 1 && pause < 64000 && !has_left(true); pause *= 2)
        usleep(pause);
}

static uint64_t live_bytes(void)
{
    uint64_t live = device_count * context_bytes();
    bool first = false, second = false;
    for (unsigned i = 0; i < space_count; i++) {
        const struct space *space = &all_spaces[i];
        for (unsigned k = 0; k < BLOCKS; k++)
            if (space->blocks[k].kind != EMPTY && space->blocks[k].kind != HOST)
                live += whole_pages(space->blocks[k].size);
        for (unsigned k = 0; k < ARRAYS; k++)
            live += space->arrays[k].handle != NULL ? whole_pages(space->arrays[k].width) : 0;
        live += space->kept;
        first = first || space->allocated[0];
        second = second || space->allocated[2];
        live += space->allocated[1] ? spare_bytes() : 0;
        live += space->own.handle != NULL ? context_bytes() : 0;
    }
    return live + (uint64_t)(first + second) * spare_bytes();
}

/* charge: once all work is done, nobody pays for what was freed */
static void op_charge(struct self *self, const unsigned long long *n)
{
    (void)n;
    static bool overcharged;
    wait_everywhere(self);
    if (scheduler.control == NULL || getenv("GPUSHARE_SIM") == NULL)
        return;
    uint64_t live = live_bytes(), charged = 0;
    /* The interposer looks after what was freed now and then, not at once. */
    for (unsigned i = 0; i == 0 || (!overcharged && i < 500 && charged > live); i++) {
        usleep(i == 0 ? 0 : 5000);
        charged = charged_on(0) + (device_count > 1 ? charged_on(1) : 0);
    }
    overcharged = overcharged || charged > live;
    if (charged > live)
        note(self, " charged=%llu for %llu", (unsigned long long)charged, (unsigned long long)live);
}

/* silence MESSAGES: the scheduler is stopped while the program has something to tell it; no such call waits */
static void op_silence(struct self *self, const unsigned long long *n)
{
    note(self, " begun");
    if (scheduler.control == NULL)
        return;
    char *reply = ask("status");
    pid_t process = (pid_t)number_after(reply != NULL ? strstr(reply, "\"scheduler\"") : NULL, "\"pid\"");
    free(reply);
    if (process <= 1 || kill(process, SIGSTOP) != 0)
        return;
    for (unsigned i = 0; i < n[0] % 2000; i++)
        scheduler.cell_begin("cell");
    scheduler.cell_end("cell");
    kill(process, SIGCONT);
}

struct retainer {
    pthread_barrier_t *meeting;
    unsigned *done; /* how many have the context */
    CUcontext handle;
    CUresult result;
};

static void *retain(void *argument)
{
    struct retainer *retainer = argument;
    pthread_barrier_wait(retainer->meeting);
    retainer->result = driver_cuDevicePrimaryCtxRetain(&retainer->handle, (CUdevice)spare_device);
    __atomic_add_fetch(retainer->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* herd THREADS: so many retain at once the primary context of a device that nothing else uses; it is charged once */
static void op_herd(struct self *self, const unsigned long long *n)
{
    struct retainer retainers[HERD];
    pthread_t threads[HERD];
    pthread_barrier_t meeting;
    unsigned count = (unsigned)(n[0] % (HERD - 1)) + 2, done = 0;
    uint64_t most = 0;
    if (spare_device < 0)
        return;
    pthread_barrier_init(&meeting, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        retainers[i] = (struct retainer){.meeting = &meeting, .done = &done};
        pthread_create(&threads[i], NULL, retain, &retainers[i]);
    }
    while (scheduler.control != NULL && getenv("GPUSHARE_SIM") != NULL &&
           __atomic_load_n(&done, __ATOMIC_ACQUIRE) < count) {
        uint64_t charged = charged_on(spare_device);
        most = charged > most ? charged : most;
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&meeting);
    for (unsigned i = 0; i < count; i++) {
        note_result(self, "cuDevicePrimaryCtxRetain", retainers[i].result);
        note(self, " same=%d", retainers[i].handle == retainers[0].handle);
        if (retainers[i].result == CUDA_SUCCESS)
            CALL(self, cuDevicePrimaryCtxRelease, (CUdevice)spare_device);
    }
    if (most > context_bytes() && getenv("GPUSHARE_SIM") != NULL)
        note(self, " charged=%llu", (unsigned long long)most);
}

const struct operation sharing_operations[] = {{"evict", op_evict, WAITS},
                                               {"charge", op_charge, WAITS | PRIVATE},
                                               {"silence", op_silence, WAITS},
                                               {"herd", op_herd, WAITS | SERIAL},
                                               {0}};
