/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_MAGIC UINT64_C(0x6770757368736d35)
#define MAX_RECORDS 512
#define MAX_SHARED 1024

enum { CHARGES = 2 };

struct record {
    pid_t pid;        /* 0: free */
    uint64_t world;   /* the PID namespace in which it has that pid */
    uint64_t started; /* tells a process from a later one with the same pid */
    uint64_t died_at; /* 0 while it lives */
    uint64_t charged[SIM_MAX_DEVICES][CHARGES];
    uint64_t left[SIM_MAX_DEVICES]; /* while it is parked */
    uint64_t managed[SIM_MAX_DEVICES];
    uint64_t managed_at[SIM_MAX_DEVICES];
};

struct shared {
    uint64_t file; /* 0: free */
    uint64_t bytes;
    unsigned device;
    uint64_t users[MAX_RECORDS / 64]; /* bits of records */
};

struct device {
    /* Whoever holds `turn` is the next to get `busy`, so two processes alternate whatever their rate. */
    pthread_mutex_t turn, busy;
    uint64_t free_at[SIM_ENGINES];
    uint64_t busy_ns;
    uint64_t sampled_at, sampled_busy_ns;
};

struct segment {
    uint64_t magic;
    uint64_t devices, teardown_ns, fork_holds;
    struct sim_unit unit[SIM_MAX_DEVICES];
    pthread_mutex_t lock; /* guards the records and what is shared */
    struct device device[SIM_MAX_DEVICES];
    struct record records[MAX_RECORDS];
    struct sim_desk desks[MAX_RECORDS]; /* of the records */
    struct shared shared[MAX_SHARED];
};

static struct segment *segment;
static struct record *self;
static bool chooses;
static unsigned chosen[SIM_MAX_DEVICES], chosen_count;
static unsigned first_gpu[SIM_MAX_DEVICES];
static bool is_parked;
static uint64_t parked[SIM_MAX_DEVICES][CHARGES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int file = -1; /* the segment's; a lock of it stands for a process and its forked children */

uint64_t sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void sim_sleep_until(uint64_t deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
                          .tv_nsec = (long)(deadline % UINT64_C(1000000000))};
    while (sim_now() < deadline && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        continue;
}

static void lock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_lock(mutex) == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
}

/* The process's start time, or 0 if there is no such process or only its zombie is left. */
static uint64_t process_started(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    char *field = strrchr(text, ')');
    char state;
    unsigned threads;
    unsigned long long started;
    if (field == NULL ||
        sscanf(field + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %u %*d %llu", &state,
               &threads, &started) != 3)
        return 0;
    if (state == 'X' || (state == 'Z' && threads <= 1))
        return 0;
    return started == 0 ? 1 : started;
}

/*
 * A process's record has its byte of the file locked. The lock belongs to the open file, which forked children inherit
 * and which ends with the last of them, or when they execute another program: as the driver's own files do.
 */
static struct flock record_lock(const struct record *record)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(record - segment->records), .l_len = 1};
}

/* A second byte is locked as files of old are: by the process alone, whose pid the kernel translates for who asks. */
static struct flock process_lock(const struct record *record)
{
    struct flock lock = record_lock(record);
    lock.l_start += MAX_RECORDS;
    return lock;
}

static uint64_t own_world(void)
{
    static uint64_t world;
    struct stat status;
    /* glibc has exported stat since 2.33 only. */
    if (world == 0 && syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &status, 0) == 0)
        world = (uint64_t)status.st_ino;
    return world;
}

/* The pid by which this process knows another, 0 if it cannot see it, or -1 if it has ended. */
static pid_t known_pid(const struct record *record)
{
    if (record->world == own_world())
        return process_started(record->pid) == record->started ? record->pid : -1;
    struct flock other = process_lock(record);
    return fcntl(file, F_GETLK, &other) != 0 || other.l_type == F_UNLCK ? -1 : other.l_pid;
}

static bool has_children(const struct record *record)
{
    struct flock other = record_lock(record);
    return fcntl(file, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
}

static void leave(struct shared *shared, const struct record *record)
{
    size_t bit = (size_t)(record - segment->records);
    shared->users[bit / 64] &= ~(UINT64_C(1) << bit % 64);
    for (size_t i = 0; i < MAX_RECORDS / 64; i++)
        if (shared->users[i] != 0)
            return;
    memset(shared, 0, sizeof *shared);
}

static void clear(struct record *record)
{
    for (struct shared *shared = segment->shared; shared < segment->shared + MAX_SHARED; shared++)
        if (shared->file != 0)
            leave(shared, record);
    struct sim_desk *desk = &segment->desks[record - segment->records];
    __atomic_store_n(&desk->word, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &desk->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    memset(record, 0, sizeof *record);
}

static void reap(void)
{
    uint64_t now = sim_now();
    for (struct record *record = segment->records; record < segment->records + MAX_RECORDS; record++) {
        if (record->pid == 0)
            continue;
        if (record->died_at == 0 && known_pid(record) < 0)
            record->died_at = now;
        if (record->died_at != 0 && segment->fork_holds && has_children(record))
            record->died_at = now;
        else if (record->died_at != 0 && now - record->died_at >= segment->teardown_ns)
            clear(record);
    }
}

static void init_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static void format_parameters(const struct sim_config *config)
{
    segment->devices = config->devices;
    memcpy(segment->unit, config->unit, sizeof segment->unit);
    segment->teardown_ns = config->teardown_ms * UINT64_C(1000000);
    segment->fork_holds = config->fork_holds;
}

static void format(const struct sim_config *config)
{
    memset(segment, 0, sizeof *segment);
    format_parameters(config);
    init_mutex(&segment->lock);
    for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
        init_mutex(&segment->device[i].turn);
        init_mutex(&segment->device[i].busy);
    }
    for (unsigned i = 0; i < MAX_RECORDS; i++)
        init_mutex(&segment->desks[i].turn);
    segment->magic = SEGMENT_MAGIC;
}

static bool enroll(const struct sim_config *config)
{
    lock(&segment->lock);
    reap();
    bool others = false;
    struct record *free_record = NULL;
    for (struct record *record = segment->records; record < segment->records + MAX_RECORDS; record++) {
        if (record->pid != 0)
            others = true;
        else if (free_record == NULL)
            free_record = record;
    }
    if (!others)
        format_parameters(config);
    if (free_record != NULL) {
        free_record->started = process_started(getpid());
        free_record->world = own_world();
        free_record->pid = getpid();
        struct flock own = record_lock(free_record), alone = process_lock(free_record);
        fcntl(file, F_OFD_SETLK, &own);
        fcntl(file, F_SETLK, &alone);
    }
    pthread_mutex_unlock(&segment->lock);
    self = free_record;
    if (self == NULL)
        fprintf(stderr, "gpushare-sim: %d processes use '%s' already: end some\n", MAX_RECORDS, config->name);
    return self != NULL;
}

static void *map_segment(int fd)
{
    return segment != NULL ? segment : mmap(NULL, sizeof *segment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static void path_of(const struct sim_config *config, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/gpushare-sim-%s", config->name);
}

static bool attach(const struct sim_config *config)
{
    if (file < 0) {
        char path[128];
        path_of(config, path, sizeof path);
        /* One that somebody made for several users has to be opened without making it: see fs.protected_regular. */
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT)
            fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        off_t size = 0;
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || (size = lseek(fd, 0, SEEK_END)) < 0 ||
            (size < (off_t)sizeof *segment && ftruncate(fd, sizeof *segment) != 0)) {
            fprintf(stderr, "gpushare-sim: cannot open %s: %s: remove it or set GPUSHARE_SIM_NAME\n", path,
                    strerror(errno));
            if (fd >= 0)
                close(fd);
            return false;
        }
        void *address = map_segment(fd);
        if (address == MAP_FAILED) {
            fprintf(stderr, "gpushare-sim: cannot map %s: %s\n", path, strerror(errno));
            close(fd);
            return false;
        }
        segment = address;
        if (segment->magic != SEGMENT_MAGIC)
            format(config);
        flock(fd, LOCK_UN);
        file = fd;
    }
    if (self == NULL && !enroll(config))
        return false;
    if (segment->devices != config->devices || memcmp(segment->unit, config->unit, sizeof segment->unit) != 0)
        fprintf(stderr,
                "gpushare-sim: '%s' is in use with %llu devices of %llu bytes: what GPUSHARE_SIM_DEVICES, "
                "GPUSHARE_SIM_MEMORY, GPUSHARE_SIM_MIG, GPUSHARE_SIM_MODEL and GPUSHARE_SIM_COMPUTE_CAPABILITY of this "
                "process say is ignored\n",
                config->name, (unsigned long long)segment->devices, (unsigned long long)segment->unit[0].memory);
    return true;
}

bool sim_segment_attach(const struct sim_config *config)
{
    pthread_mutex_lock(&opening);
    bool attached = attach(config);
    pthread_mutex_unlock(&opening);
    return attached;
}

static bool look(const struct sim_config *config)
{
    char path[128];
    path_of(config, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    void *address =
        flock(fd, LOCK_EX) != 0 || lseek(fd, 0, SEEK_END) < (off_t)sizeof *segment ? MAP_FAILED : map_segment(fd);
    flock(fd, LOCK_UN);
    if (address != MAP_FAILED && ((struct segment *)address)->magic == SEGMENT_MAGIC) {
        segment = address;
        file = fd;
        return true;
    }
    if (address != MAP_FAILED && address != segment)
        munmap(address, sizeof *segment);
    close(fd);
    return false;
}

bool sim_segment_look(const struct sim_config *config)
{
    pthread_mutex_lock(&opening);
    bool open = file >= 0 || look(config);
    pthread_mutex_unlock(&opening);
    return open;
}

void sim_segment_detach(void)
{
    if (self == NULL)
        return;
    lock(&segment->lock);
    struct record *record = self;
    self = NULL;
    clear(record);
    struct flock own = record_lock(record), alone = process_lock(record);
    own.l_type = alone.l_type = F_UNLCK;
    fcntl(file, F_OFD_SETLK, &own);
    fcntl(file, F_SETLK, &alone);
    pthread_mutex_unlock(&segment->lock);
}

void sim_segment_forget(void)
{
    opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    is_parked = false;
    self = NULL;
    file = -1; /* stays open: the parent's memory is to stay in use as long */
}

unsigned sim_segment_devices(void)
{
    return chooses ? chosen_count : (unsigned)segment->devices;
}

unsigned sim_segment_machine(unsigned device)
{
    return chooses ? chosen[device] : device;
}

bool sim_segment_seen(unsigned machine, unsigned *device)
{
    for (*device = 0; *device < sim_segment_devices(); ++*device)
        if (sim_segment_machine(*device) == machine)
            return true;
    return false;
}

const struct sim_unit *sim_segment_unit(unsigned device)
{
    return &segment->unit[sim_segment_machine(device)];
}

void sim_segment_choose(const unsigned *machine, unsigned count)
{
    chooses = true;
    chosen_count = count;
    memcpy(chosen, machine, count * sizeof *machine);
    for (unsigned i = 0; i < count; i++)
        first_gpu[i] = segment->unit[machine[i]].gpu;
}

const struct sim_unit *sim_segment_machine_unit(unsigned machine)
{
    return machine < segment->devices ? &segment->unit[machine] : NULL;
}

unsigned sim_segment_first_gpu(unsigned device)
{
    return first_gpu[device];
}

static void sum(unsigned device, struct sim_usage *usage)
{
    *usage = (struct sim_usage){.total = segment->unit[device].memory};
    for (struct record *record = segment->records; record < segment->records + MAX_RECORDS; record++) {
        if (record->pid == 0)
            continue;
        usage->used += record->charged[device][SIM_CHARGE_MEMORY] + record->charged[device][SIM_CHARGE_CONTEXT] +
                       record->left[device];
        usage->managed += record->managed[device];
    }
    for (struct shared *shared = segment->shared; shared < segment->shared + MAX_SHARED; shared++)
        if (shared->file != 0 && shared->device == device)
            usage->used += shared->bytes;
}

/* Takes managed residency from whoever used his longest ago, this process included unless it is spared. */
static uint64_t steal(unsigned device, uint64_t bytes, uint64_t older_than, const struct record *spared)
{
    uint64_t stolen = 0;
    while (stolen < bytes) {
        struct record *victim = NULL;
        for (struct record *record = segment->records; record < segment->records + MAX_RECORDS; record++)
            if (record->pid != 0 && record != spared && record->managed[device] > 0 &&
                record->managed_at[device] < older_than &&
                (victim == NULL || record->managed_at[device] < victim->managed_at[device]))
                victim = record;
        if (victim == NULL)
            break;
        uint64_t part = bytes - stolen < victim->managed[device] ? bytes - stolen : victim->managed[device];
        victim->managed[device] -= part;
        stolen += part;
    }
    return stolen;
}

bool sim_segment_charge(unsigned device, enum sim_charge what, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (self == NULL)
        return false;
    lock(&segment->lock);
    struct sim_usage usage;
    sum(device, &usage);
    if (bytes > usage.total || usage.used > usage.total - bytes) {
        reap();
        sum(device, &usage);
    }
    bool fits = bytes <= usage.total && usage.used <= usage.total - bytes;
    if (fits) {
        uint64_t room = usage.total - usage.used - bytes;
        if (usage.managed > room)
            steal(device, usage.managed - room, UINT64_MAX, NULL);
        self->charged[device][what] += bytes;
    }
    pthread_mutex_unlock(&segment->lock);
    return fits;
}

void sim_segment_refund(unsigned device, enum sim_charge what, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (self == NULL)
        return;
    lock(&segment->lock);
    (is_parked ? parked : self->charged)[device][what] -= bytes;
    pthread_mutex_unlock(&segment->lock);
}

uint64_t sim_segment_own(unsigned device)
{
    device = sim_segment_machine(device);
    lock(&segment->lock);
    uint64_t bytes = self == NULL ? 0 : (is_parked ? parked : self->charged)[device][SIM_CHARGE_MEMORY];
    pthread_mutex_unlock(&segment->lock);
    return bytes;
}

void sim_segment_park(uint64_t left)
{
    lock(&segment->lock);
    if (self != NULL) { /* it may end meanwhile */
        memcpy(parked, self->charged, sizeof parked);
        memset(self->charged, 0, sizeof self->charged);
        for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
            self->left[machine] =
                parked[machine][SIM_CHARGE_CONTEXT] < left ? parked[machine][SIM_CHARGE_CONTEXT] : left;
        is_parked = true;
    }
    pthread_mutex_unlock(&segment->lock);
}

/* Whether what is parked fits, and managed memory has given way. Under the lock. */
static bool make_room(const unsigned to[SIM_MAX_DEVICES])
{
    uint64_t needed[SIM_MAX_DEVICES] = {0}, given[SIM_MAX_DEVICES] = {0};
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++) {
        needed[to[machine]] += parked[machine][SIM_CHARGE_MEMORY] + parked[machine][SIM_CHARGE_CONTEXT];
        given[machine] = self->left[machine];
    }
    struct sim_usage usage;
    for (unsigned machine = 0; machine < segment->devices; machine++) {
        sum(machine, &usage);
        if (needed[machine] > 0 && usage.used - given[machine] + needed[machine] > usage.total)
            return false;
    }
    for (unsigned machine = 0; machine < segment->devices; machine++) {
        sum(machine, &usage);
        uint64_t used = usage.used - given[machine] + needed[machine];
        if (used + usage.managed > usage.total)
            steal(machine, used + usage.managed - usage.total, UINT64_MAX, NULL);
    }
    return true;
}

/* What this process sees follows; what it sees of the new places takes those that were left. */
static void renumber(const unsigned to[SIM_MAX_DEVICES])
{
    unsigned inverse[SIM_MAX_DEVICES];
    bool entered[SIM_MAX_DEVICES] = {false};
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
        inverse[machine] = machine;
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
        if (to[machine] != machine) {
            inverse[to[machine]] = machine;
            entered[to[machine]] = true;
        }
    for (unsigned i = 0; i < chosen_count; i++) {
        unsigned machine = chosen[i];
        if (to[machine] != machine) {
            chosen[i] = to[machine];
            continue;
        }
        /* Back along the moves, to where one began that nobody moves to. */
        while (entered[machine])
            machine = inverse[machine];
        chosen[i] = machine;
    }
}

bool sim_segment_unpark(const unsigned to[SIM_MAX_DEVICES])
{
    lock(&segment->lock);
    reap();
    bool fits = self != NULL && is_parked && make_room(to);
    if (fits) {
        for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
            for (unsigned what = 0; what < CHARGES; what++)
                self->charged[to[machine]][what] += parked[machine][what];
        memset(self->left, 0, sizeof self->left);
        renumber(to);
        is_parked = false;
    }
    pthread_mutex_unlock(&segment->lock);
    return fits;
}

struct sim_desk *sim_segment_desk(void)
{
    return self == NULL ? NULL : &segment->desks[self - segment->records];
}

struct sim_desk *sim_segment_desk_of(pid_t pid, uint64_t *started)
{
    struct sim_desk *found = NULL;
    lock(&segment->lock);
    reap();
    for (struct record *record = segment->records; record < segment->records + MAX_RECORDS && found == NULL; record++) {
        struct sim_desk *desk = &segment->desks[record - segment->records];
        if (record->pid == 0 || record->died_at != 0 || __atomic_load_n(&desk->word, __ATOMIC_SEQ_CST) == 0 ||
            known_pid(record) != pid)
            continue;
        *started = record->started;
        found = desk;
    }
    pthread_mutex_unlock(&segment->lock);
    return found;
}

bool sim_segment_desk_is_of(const struct sim_desk *desk, pid_t pid, uint64_t started)
{
    lock(&segment->lock);
    const struct record *record = &segment->records[desk - segment->desks];
    bool same = record->pid != 0 && record->died_at == 0 && record->started == started && known_pid(record) == pid;
    pthread_mutex_unlock(&segment->lock);
    return same;
}

bool sim_segment_reaches(pid_t pid)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return process_started(pid) != 0 && readlink(path, text, sizeof text) > 0;
}

void sim_segment_lock(pthread_mutex_t *mutex)
{
    lock(mutex);
}

bool sim_segment_try(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_trylock(mutex);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    return error != EBUSY;
}

/* The shared memory of that file, or, if there is none and `add`, a free place; else NULL. */
static struct shared *find_shared(uint64_t name, bool add)
{
    struct shared *place = NULL;
    for (struct shared *shared = segment->shared; shared < segment->shared + MAX_SHARED; shared++) {
        if (shared->file == name)
            return shared;
        if (shared->file == 0 && add && place == NULL)
            place = shared;
    }
    return place;
}

static void use_shared(struct shared *shared)
{
    size_t bit = (size_t)(self - segment->records);
    shared->users[bit / 64] |= UINT64_C(1) << bit % 64;
}

bool sim_segment_share(unsigned device, uint64_t name, uint64_t bytes)
{
    if (device < SIM_MAX_DEVICES)
        device = sim_segment_machine(device);
    if (self == NULL)
        return false;
    lock(&segment->lock);
    reap();
    struct shared *shared = find_shared(name, true);
    if (shared != NULL && shared->file == 0) {
        *shared = (struct shared){.file = name, .bytes = bytes, .device = device};
        if (device < SIM_MAX_DEVICES)
            self->charged[device][SIM_CHARGE_MEMORY] -= bytes;
        use_shared(shared);
    }
    pthread_mutex_unlock(&segment->lock);
    return shared != NULL;
}

bool sim_segment_join(unsigned *device, uint64_t name, uint64_t bytes)
{
    if (self == NULL)
        return false;
    unsigned machine = *device < SIM_MAX_DEVICES ? sim_segment_machine(*device) : *device;
    lock(&segment->lock);
    reap();
    struct shared *shared = find_shared(name, true);
    if (shared != NULL && shared->file == 0) {
        struct sim_usage usage;
        sum(machine, &usage);
        if (bytes > usage.total || usage.used > usage.total - bytes)
            shared = NULL;
        else
            *shared = (struct shared){.file = name, .bytes = bytes, .device = machine};
    }
    if (shared != NULL) {
        /* Memory of a device that this process does not see counts as the host's to it. */
        if (shared->device >= SIM_MAX_DEVICES || !sim_segment_seen(shared->device, device))
            *device = SIM_MAX_DEVICES;
        use_shared(shared);
    }
    pthread_mutex_unlock(&segment->lock);
    return shared != NULL;
}

void sim_segment_leave(uint64_t name)
{
    if (self == NULL)
        return;
    lock(&segment->lock);
    struct shared *shared = find_shared(name, false);
    if (shared != NULL)
        leave(shared, self);
    pthread_mutex_unlock(&segment->lock);
}

void sim_segment_usage(unsigned device, struct sim_usage *usage)
{
    device = sim_segment_machine(device);
    lock(&segment->lock);
    reap();
    sum(device, usage);
    pthread_mutex_unlock(&segment->lock);
}

/* Shared memory is said to be its first user's, so that it is said once. */
static uint64_t shared_by(unsigned device, const struct record *record)
{
    size_t own = (size_t)(record - segment->records);
    uint64_t bytes = 0;
    for (struct shared *shared = segment->shared; shared < segment->shared + MAX_SHARED; shared++) {
        if (shared->file == 0 || shared->device != device)
            continue;
        size_t first = 0;
        while ((shared->users[first / 64] >> first % 64 & 1) == 0)
            first++;
        if (first == own)
            bytes += shared->bytes;
    }
    return bytes;
}

unsigned sim_segment_processes(unsigned device, struct sim_process_usage *processes, unsigned size)
{
    device = sim_segment_machine(device);
    unsigned count = 0;
    lock(&segment->lock);
    reap();
    for (struct record *record = segment->records; record < segment->records + MAX_RECORDS; record++) {
        if (record->pid == 0 || record->died_at != 0 || record->charged[device][SIM_CHARGE_CONTEXT] == 0)
            continue;
        pid_t pid = known_pid(record);
        if (pid <= 0)
            continue;
        if (count < size)
            processes[count] = (struct sim_process_usage){.pid = pid,
                                                          .bytes = record->charged[device][SIM_CHARGE_MEMORY] +
                                                                   record->charged[device][SIM_CHARGE_CONTEXT] +
                                                                   record->managed[device] + shared_by(device, record)};
        count++;
    }
    pthread_mutex_unlock(&segment->lock);
    return count;
}

uint64_t sim_duration(uint64_t bytes, uint64_t bandwidth)
{
    return (uint64_t)((double)bytes * 1e9 / (double)bandwidth);
}

uint64_t sim_segment_reserve(unsigned device, enum sim_engine engine, uint64_t duration)
{
    device = sim_segment_machine(device);
    uint64_t *free_at = &segment->device[device].free_at[engine];
    uint64_t now = sim_now();
    uint64_t before = __atomic_load_n(free_at, __ATOMIC_RELAXED), after;
    do
        after = (before > now ? before : now) + duration;
    while (!__atomic_compare_exchange_n(free_at, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return after;
}

uint64_t sim_segment_compute_begin(unsigned device)
{
    device = sim_segment_machine(device);
    struct device *d = &segment->device[device];
    lock(&d->turn);
    lock(&d->busy);
    pthread_mutex_unlock(&d->turn);
    return sim_now();
}

uint64_t sim_segment_compute_end(unsigned device, uint64_t begin)
{
    device = sim_segment_machine(device);
    uint64_t ran = sim_now() - begin;
    segment->device[device].busy_ns += ran;
    pthread_mutex_unlock(&segment->device[device].busy);
    return ran;
}

unsigned sim_segment_utilization(unsigned device)
{
    device = sim_segment_machine(device);
    struct device *d = &segment->device[device];
    lock(&segment->lock);
    uint64_t now = sim_now(), busy = __atomic_load_n(&d->busy_ns, __ATOMIC_RELAXED);
    uint64_t span = now - d->sampled_at, ran = busy - d->sampled_busy_ns;
    d->sampled_at = now;
    d->sampled_busy_ns = busy;
    pthread_mutex_unlock(&segment->lock);
    return span == 0 ? 0 : ran >= span ? 100 : (unsigned)(ran * 100 / span);
}

uint64_t sim_segment_managed_resident(unsigned device)
{
    device = sim_segment_machine(device);
    if (self == NULL)
        return 0;
    lock(&segment->lock);
    uint64_t bytes = self->managed[device];
    pthread_mutex_unlock(&segment->lock);
    return bytes;
}

uint64_t sim_segment_managed_admit(unsigned device, uint64_t bytes, uint64_t older_than, uint64_t *stolen)
{
    device = sim_segment_machine(device);
    *stolen = 0;
    if (self == NULL)
        return 0;
    lock(&segment->lock);
    reap();
    struct sim_usage usage;
    sum(device, &usage);
    uint64_t taken = usage.used + usage.managed;
    uint64_t room = taken < usage.total ? usage.total - taken : 0;
    if (room < bytes)
        *stolen = steal(device, bytes - room, older_than, self);
    uint64_t admitted = room + *stolen < bytes ? room + *stolen : bytes;
    self->managed[device] += admitted;
    self->managed_at[device] = sim_now();
    pthread_mutex_unlock(&segment->lock);
    return admitted;
}

void sim_segment_managed_drop(unsigned device, uint64_t bytes)
{
    device = sim_segment_machine(device);
    if (self == NULL)
        return;
    lock(&segment->lock);
    self->managed[device] -= bytes < self->managed[device] ? bytes : self->managed[device];
    pthread_mutex_unlock(&segment->lock);
}
