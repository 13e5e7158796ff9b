/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "hibernate/hibernate.h"

#include "gate/capture.h"
#include "gate/meter.h"
#include "loader/pci.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/devices.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * If a process has more unevictable memory than this besides its contexts, copying it to the host and back takes too
 * long.
 */
static const uint64_t most_unevictable = UINT64_C(256) << 20;

static uint32_t shares, manages, communicates;
static uint64_t took;

void gs_hibernate_note_sharing(void)
{
    __atomic_store_n(&shares, 1, __ATOMIC_RELAXED);
}

void gs_hibernate_note_managed(void)
{
    __atomic_store_n(&manages, 1, __ATOMIC_RELAXED);
}

void gs_hibernate_note_lookup(const char *name)
{
    if (name != NULL && strstr(name, "ncclDevKernel") != NULL)
        __atomic_store_n(&communicates, 1, __ATOMIC_RELAXED);
}

static int is_nccl(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    name = name != NULL ? name + 1 : info->dlpi_name;
    *(bool *)found = strncmp(name, "libnccl.so", 10) == 0;
    return *(bool *)found;
}

static bool is_several(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL && strtol(text, NULL, 10) > 1;
}

/*
 * PyTorch loads NCCL into every process. A process that has communicators has looked up NCCL's CUDA kernels, or its
 * environment shows that it is one of several ranks.
 */
static bool may_have_communicators(void)
{
    bool loaded = false;
    if (__atomic_load_n(&communicates, __ATOMIC_RELAXED))
        return true;
    if (!is_several("WORLD_SIZE") && !is_several("OMPI_COMM_WORLD_SIZE") && !is_several("PMI_SIZE"))
        return false;
    dl_iterate_phdr(is_nccl, &loaded);
    return loaded;
}

unsigned gs_hibernate_needs(struct gpushare_usage *needs)
{
    struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    unsigned count = gs_devices_usages(usages), used = 0;
    *needs = (struct gpushare_usage){0};
    if (count != 0)
        memcpy(needs->gpu, usages[0].gpu, sizeof(needs->gpu)); /* a process that uses no GPU needs no memory on it */
    for (unsigned i = 0; i < count; i++) {
        if (usages[i].promised == 0 && usages[i].unevictable == 0 && usages[i].context == 0)
            continue;
        used++;
        memcpy(needs->gpu, usages[i].gpu, sizeof(needs->gpu));
        needs->unevictable = usages[i].unevictable;
        needs->context = usages[i].context;
    }
    uint64_t least = __atomic_load_n(&took, __ATOMIC_RELAXED);
    if (needs->context != 0 && needs->context < least)
        needs->context = least;
    return used;
}

void gs_hibernate_note_context_bytes(uint64_t bytes)
{
    __atomic_store_n(&took, bytes, __ATOMIC_RELAXED);
}

enum gpushare_parking gs_hibernate_may(struct gpushare_usage *needs)
{
    unsigned gpus = gs_hibernate_needs(needs);
    if (!gs_memory_can_move())
        return GPUSHARE_PARKING_PLAIN;
    if (gpus > 1)
        return GPUSHARE_PARKING_GPUS;
    if (may_have_communicators())
        return GPUSHARE_PARKING_NCCL;
    if (__atomic_load_n(&shares, __ATOMIC_RELAXED))
        return GPUSHARE_PARKING_IPC;
    if (__atomic_load_n(&manages, __ATOMIC_RELAXED) || gs_memory_oversubscribed())
        return GPUSHARE_PARKING_MANAGED;
    if (needs->unevictable > most_unevictable)
        return GPUSHARE_PARKING_UNEVICTABLE;
    return gs_capture_open() ? GPUSHARE_PARKING_CAPTURE : GPUSHARE_PARKING_DONE;
}

void gs_hibernate_restored(const uint8_t from[16], const uint8_t to[16])
{
    if (from == NULL)
        return;
    gs_device_moved(from, to);
    gs_meter_moved(from, to);
    gs_pci_moved();
}

/* --- The hibernator --- */

static struct {
    pid_t pid; /* 0: it is not running */
    int output;
    char text[256];
    size_t length;
} hibernator;

struct own_path {
    char *path;
    size_t size;
    bool known;
};

static int is_own(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct own_path *own = argument;
    uintptr_t here = (uintptr_t)&is_own;
    bool within = false;
    for (unsigned i = 0; i < info->dlpi_phnum && !within; i++) {
        uintptr_t start = (uintptr_t)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        within = info->dlpi_phdr[i].p_type == PT_LOAD && here >= start && here - start < info->dlpi_phdr[i].p_memsz;
    }
    const char *slash = within ? strrchr(info->dlpi_name, '/') : NULL;
    if (slash == NULL)
        return within;
    int directory = (int)(slash - info->dlpi_name);
    int written = snprintf(own->path, own->size, "%.*s/gpushare-hibernator", directory, info->dlpi_name);
    own->known = written > 0 && (size_t)written < own->size;
    return 1;
}

/*
 * Does not use dladdr: a constructor that calls CUDA holds the linker's lock, and waits for the thread that runs this.
 */
static bool find_program(char *path, size_t size)
{
    struct own_path own = {.path = path, .size = size};
    dl_iterate_phdr(is_own, &own);
    return own.known;
}

static int spawn(const char *program, const char *path, int output, pid_t *child)
{
    char pid[16], needs[64];
    struct gpushare_usage needed;
    gs_hibernate_needs(&needed);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    for (size_t i = 0; i < sizeof(needed.gpu); i++)
        snprintf(needs + 2 * i, 3, "%02x", needed.gpu[i]);
    snprintf(needs + 2 * sizeof(needed.gpu), sizeof(needs) - 2 * sizeof(needed.gpu), "=%llu",
             (unsigned long long)(needed.context + needed.unevictable));
    char *const arguments[] = {(char *)program, "--driver", (char *)path, "--wake", pid, needs, NULL};
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&files);
    /* An interrupt at the terminal must not reach the hibernator. */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
    /* The hibernator does not become a client, whatever is preloaded. */
    int problem = posix_spawn(child, program, &files, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return problem;
}

static bool start(char *text, size_t size)
{
    char program[4096];
    int ends[2];
    const char *path = gs_real_path();
    if (path == NULL || !find_program(program, sizeof(program))) {
        snprintf(text, size, "the path of gpushare-hibernator is not known");
        return false;
    }
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        snprintf(text, size, "%s", strerror(errno));
        return false;
    }
    pid_t child;
    int problem = spawn(program, path, ends[1], &child);
    close(ends[1]);
    if (problem != 0) {
        close(ends[0]);
        snprintf(text, size, "%s: %s", program, strerror(problem));
        return false;
    }
    hibernator.output = ends[0];
    hibernator.length = 0;
    /* must come last: a child that is forked from now on closes the output */
    __atomic_store_n(&hibernator.pid, child, __ATOMIC_RELEASE);
    return true;
}

static void read_output(void)
{
    ssize_t n;
    char rest[256];
    for (;;) {
        size_t room = sizeof(hibernator.text) - 1 - hibernator.length;
        n = read(hibernator.output, room != 0 ? hibernator.text + hibernator.length : rest,
                 room != 0 ? room : sizeof(rest));
        if (n <= 0)
            break;
        hibernator.length += room != 0 ? (size_t)n : 0;
    }
    hibernator.text[hibernator.length] = '\0';
}

enum gs_hibernator gs_hibernator_run(char *text, size_t size)
{
    if (hibernator.pid == 0 && !start(text, size))
        return GS_HIBERNATOR_FAILED;
    int status;
    pid_t ended = waitpid(hibernator.pid, &status, WNOHANG);
    read_output();
    if (ended == 0)
        return GS_HIBERNATOR_RUNS;
    __atomic_store_n(&hibernator.pid, 0, __ATOMIC_RELEASE);
    close(hibernator.output);
    /* If the application has reaped the child, or ignores its children, only the output shows how it ended. */
    bool done = ended > 0 ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : strstr(hibernator.text, "awake\n") != NULL;
    if (done)
        return GS_HIBERNATOR_DONE;
    hibernator.text[strcspn(hibernator.text, "\n")] = '\0';
    snprintf(text, size, "%s", hibernator.text[0] != '\0' ? hibernator.text : "the hibernator ended without a reason");
    return GS_HIBERNATOR_FAILED;
}

void gs_hibernate_after_fork(void)
{
    if (hibernator.pid != 0)
        close(hibernator.output);
    hibernator.pid = 0;
    shares = manages = communicates = 0;
}
