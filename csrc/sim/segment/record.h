/* SPDX-License-Identifier: BSD-3-Clause */
/* The records of processes: what each has, given back once it has ended. */
#ifndef SIM_SEGMENT_RECORD_H
#define SIM_SEGMENT_RECORD_H

#include "segment/layout.h"

#include <fcntl.h>

/* NULL: it is not mapped. */
extern struct sim_segment *sim_segment;
/* This process's own, or NULL. */
extern struct sim_record *sim_record_self;
/* The segment's; a lock of it stands for a process and its forked children. -1: it is not open. */
extern int sim_segment_file;

/* Of one in the segment, which may be a dead one's. Try is false if somebody holds it who lives. */
void sim_segment_lock(pthread_mutex_t *mutex);
bool sim_segment_try(pthread_mutex_t *mutex);

/* The process's start time, or 0 if there is no such process or only its zombie is left. */
uint64_t sim_process_started(pid_t pid);
/* Names the PID namespace of this process. */
uint64_t sim_own_world(void);

/* The locks of the file that stand for a record: for its process and forked children, and for its process alone. */
struct flock sim_record_lock(const struct sim_record *record);
struct flock sim_record_process_lock(const struct sim_record *record);

/* The pid by which this process knows another, 0 if it cannot see it, or -1 if it has ended. */
pid_t sim_record_pid(const struct sim_record *record);

/* All under the segment's lock. Reap clears the records of processes that have ended, once their bytes are free. */
void sim_shared_file_leave(struct sim_shared_file *shared, const struct sim_record *record);
void sim_record_clear(struct sim_record *record);
void sim_records_reap(void);

#endif
