/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/record.h"

#include "base/clock.h"
#include "segment/energy.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct sim_segment *sim_segment;
struct sim_record *sim_record_self;
int sim_segment_file = -1;

void sim_segment_lock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_lock(mutex) == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
}

bool sim_segment_try(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_trylock(mutex);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    return error != EBUSY;
}

/* The start time of the process, or 0 if there is no such process or only its zombie is left. */
uint64_t sim_process_started(pid_t pid)
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
 * Each process locks the byte of its record in the file. The lock belongs to the open file. Forked children inherit it,
 * and it ends when the last of them ends or executes another program. The driver's own files behave like this.
 */
struct flock sim_record_lock(const struct sim_record *record)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(record - sim_segment->records), .l_len = 1};
}

/*
 * A second byte has a classic record lock, which belongs to the process alone. The kernel translates the owner's pid
 * for the process that queries it.
 */
struct flock sim_record_process_lock(const struct sim_record *record)
{
    struct flock lock = sim_record_lock(record);
    lock.l_start += SIM_MAX_RECORDS;
    return lock;
}

uint64_t sim_own_pid_namespace(void)
{
    static uint64_t pid_namespace;
    struct stat status;
    /* glibc exports stat only since version 2.33. */
    if (pid_namespace == 0 && syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &status, 0) == 0)
        pid_namespace = (uint64_t)status.st_ino;
    return pid_namespace;
}

/* The pid of another process in this process's namespace, 0 if it is not visible, or -1 if it has ended. */
pid_t sim_record_pid(const struct sim_record *record)
{
    if (record->pid_namespace == sim_own_pid_namespace())
        return sim_process_started(record->pid) == record->started ? record->pid : -1;
    struct flock other = sim_record_process_lock(record);
    return fcntl(sim_segment_file, F_GETLK, &other) != 0 || other.l_type == F_UNLCK ? -1 : other.l_pid;
}

static bool has_children(const struct sim_record *record)
{
    struct flock other = sim_record_lock(record);
    return fcntl(sim_segment_file, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
}

void sim_shared_file_leave(struct sim_shared_file *shared, const struct sim_record *record)
{
    size_t bit = (size_t)(record - sim_segment->records);
    shared->users[bit / 64] &= ~(UINT64_C(1) << bit % 64);
    for (size_t i = 0; i < SIM_MAX_RECORDS / 64; i++)
        if (shared->users[i] != 0)
            return;
    memset(shared, 0, sizeof *shared);
}

void sim_record_clear(struct sim_record *record)
{
    sim_energy_advance_all(sim_segment);
    for (struct sim_shared_file *shared = sim_segment->shared; shared < sim_segment->shared + SIM_MAX_SHARED; shared++)
        if (shared->file != 0)
            sim_shared_file_leave(shared, record);
    struct sim_desk *desk = &sim_segment->desks[record - sim_segment->records];
    __atomic_store_n(&desk->word, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &desk->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    memset(record, 0, sizeof *record);
}

void sim_records_reap(void)
{
    uint64_t now = sim_now();
    for (struct sim_record *record = sim_segment->records; record < sim_segment->records + SIM_MAX_RECORDS; record++) {
        if (record->pid == 0)
            continue;
        if (record->died_at == 0 && sim_record_pid(record) < 0)
            record->died_at = now;
        if (record->died_at != 0 && sim_segment->fork_holds && has_children(record))
            record->died_at = now;
        else if (record->died_at != 0 && now - record->died_at >= sim_segment->teardown_ns)
            sim_record_clear(record);
    }
}
