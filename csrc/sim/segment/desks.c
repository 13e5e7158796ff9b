/* SPDX-License-Identifier: BSD-3-Clause */
#include "segment/desks.h"

#include "segment/record.h"

#include <stdio.h>
#include <unistd.h>

struct sim_desk *sim_segment_desk(void)
{
    return sim_record_self == NULL ? NULL : &sim_segment->desks[sim_record_self - sim_segment->records];
}

struct sim_desk *sim_segment_desk_of(pid_t pid, uint64_t *started)
{
    struct sim_desk *found = NULL;
    sim_segment_lock(&sim_segment->lock);
    sim_records_reap();
    for (struct sim_record *record = sim_segment->records;
         record < sim_segment->records + SIM_MAX_RECORDS && found == NULL; record++) {
        struct sim_desk *desk = &sim_segment->desks[record - sim_segment->records];
        if (record->pid == 0 || record->died_at != 0 || __atomic_load_n(&desk->word, __ATOMIC_SEQ_CST) == 0 ||
            sim_record_pid(record) != pid)
            continue;
        *started = record->started;
        found = desk;
    }
    pthread_mutex_unlock(&sim_segment->lock);
    return found;
}

bool sim_segment_desk_is_of(const struct sim_desk *desk, pid_t pid, uint64_t started)
{
    sim_segment_lock(&sim_segment->lock);
    const struct sim_record *record = &sim_segment->records[desk - sim_segment->desks];
    bool same = record->pid != 0 && record->died_at == 0 && record->started == started && sim_record_pid(record) == pid;
    pthread_mutex_unlock(&sim_segment->lock);
    return same;
}

bool sim_segment_reaches(pid_t pid)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return sim_process_started(pid) != 0 && readlink(path, text, sizeof text) > 0;
}
