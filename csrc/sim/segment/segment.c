/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/segment.h"

#include "segment/memory.h"
#include "segment/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define SEGMENT_MAGIC UINT64_C(0x6770757368736d36)

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

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
    sim_segment->devices = config->devices;
    memcpy(sim_segment->unit, config->unit, sizeof sim_segment->unit);
    sim_segment->teardown_ns = config->teardown_ms * UINT64_C(1000000);
    sim_segment->fork_holds = config->fork_holds;
    sim_segment->watts[SIM_POWER_BARE] = config->power_bare;
    sim_segment->watts[SIM_POWER_CONTEXT] = config->power_context;
    sim_segment->watts[SIM_POWER_BUSY] = config->power_busy;
}

static void format(const struct sim_config *config)
{
    memset(sim_segment, 0, sizeof *sim_segment);
    format_parameters(config);
    init_mutex(&sim_segment->lock);
    for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
        init_mutex(&sim_segment->device[i].turn);
        init_mutex(&sim_segment->device[i].busy);
    }
    for (unsigned i = 0; i < SIM_MAX_RECORDS; i++)
        init_mutex(&sim_segment->desks[i].turn);
    sim_segment->magic = SEGMENT_MAGIC;
}

static bool enroll(const struct sim_config *config)
{
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    bool others = false;
    struct sim_record *free_record = NULL;
    for (struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS; record++) {
        if (record->pid != 0)
            others = true;
        else if (free_record == NULL)
            free_record = record;
    }
    if (!others)
        format_parameters(config);
    if (free_record != NULL) {
        free_record->started = sim_process_started(getpid());
        free_record->pid_namespace = sim_own_pid_namespace();
        free_record->pid = getpid();
        struct flock own = sim_record_lock(free_record), alone = sim_record_process_lock(free_record);
        fcntl(sim_segment_file, F_OFD_SETLK, &own);
        fcntl(sim_segment_file, F_SETLK, &alone);
    }
    pthread_mutex_unlock(&sim_segment->lock);
    sim_record_self = free_record;
    if (sim_record_self == NULL)
        fprintf(stderr, "gpushare-sim: %d processes already use '%s'; end some of them\n", SIM_MAX_RECORDS,
                config->name);
    return sim_record_self != NULL;
}

static void *map_segment(int fd)
{
    return sim_segment != NULL ? sim_segment
                               : mmap(NULL, sizeof *sim_segment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static void path_of(const struct sim_config *config, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/gpushare-sim-%s", config->name);
}

static bool attach(const struct sim_config *config)
{
    if (sim_segment_file < 0) {
        char path[128];
        path_of(config, path, sizeof path);
        /*
         * A file that another user created for several users must be opened without O_CREAT: see fs.protected_regular.
         */
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT)
            fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        off_t size = 0;
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || (size = lseek(fd, 0, SEEK_END)) < 0 ||
            (size < (off_t)sizeof *sim_segment && ftruncate(fd, sizeof *sim_segment) != 0)) {
            fprintf(stderr, "gpushare-sim: cannot open %s: %s. Remove it, or set GPUSHARE_SIM_NAME\n", path,
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
        sim_segment = address;
        if (sim_segment->magic != SEGMENT_MAGIC)
            format(config);
        flock(fd, LOCK_UN);
        sim_segment_file = fd;
    }
    if (sim_record_self == NULL && !enroll(config))
        return false;
    if (sim_segment->devices != config->devices ||
        memcmp(sim_segment->unit, config->unit, sizeof sim_segment->unit) != 0)
        fprintf(stderr,
                "gpushare-sim: '%s' is in use with %llu devices of %llu bytes. The values of GPUSHARE_SIM_DEVICES, "
                "GPUSHARE_SIM_MEMORY, GPUSHARE_SIM_MIG, GPUSHARE_SIM_MODEL and GPUSHARE_SIM_COMPUTE_CAPABILITY of this "
                "process are ignored\n",
                config->name, (unsigned long long)sim_segment->devices,
                (unsigned long long)sim_segment->unit[0].memory);
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
        flock(fd, LOCK_EX) != 0 || lseek(fd, 0, SEEK_END) < (off_t)sizeof *sim_segment ? MAP_FAILED : map_segment(fd);
    flock(fd, LOCK_UN);
    if (address != MAP_FAILED && ((struct sim_segment *)address)->magic == SEGMENT_MAGIC) {
        sim_segment = address;
        sim_segment_file = fd;
        return true;
    }
    if (address != MAP_FAILED && address != sim_segment)
        munmap(address, sizeof *sim_segment);
    close(fd);
    return false;
}

bool sim_segment_look(const struct sim_config *config)
{
    pthread_mutex_lock(&opening);
    bool open = sim_segment_file >= 0 || look(config);
    pthread_mutex_unlock(&opening);
    return open;
}

void sim_segment_detach(void)
{
    if (sim_record_self == NULL)
        return;
    sim_segment_lock(&sim_segment->lock);
    struct sim_record *record = sim_record_self;
    sim_record_self = NULL;
    sim_record_clear(record);
    struct flock own = sim_record_lock(record), alone = sim_record_process_lock(record);
    own.l_type = alone.l_type = F_UNLCK;
    fcntl(sim_segment_file, F_OFD_SETLK, &own);
    fcntl(sim_segment_file, F_SETLK, &alone);
    pthread_mutex_unlock(&sim_segment->lock);
}

void sim_segment_forget(void)
{
    opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    sim_segment_forget_parked();
    sim_record_self = NULL;
    sim_segment_file = -1; /* stays open, so that the parent's memory stays in use as long as the child lives */
}
