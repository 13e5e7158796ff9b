/* SPDX-License-Identifier: BSD-3-Clause */
/* The records of processes: what each process has. A record is freed after its process has ended. */
#ifndef SIM_SEGMENT_RECORD_H
#define SIM_SEGMENT_RECORD_H

#include "segment/layout.h"

#include <fcntl.h>

/* NULL: the segment is not mapped. */
extern struct sim_segment *sim_segment;
/* This process's record, or NULL. */
extern struct sim_record *sim_record_self;
/* The segment's file; a lock in it stands for a process and its forked children. -1: not open. */
extern int sim_segment_file;

/* Locks in the segment, whose holder may be dead. Try returns false if a process that is alive holds the lock. */
void sim_segment_lock(pthread_mutex_t *mutex);
bool sim_segment_try(pthread_mutex_t *mutex);

/* The start time of the process, or 0 if there is no such process or only its zombie is left. */
uint64_t sim_process_started(pid_t pid);
/* Identifies the PID namespace of this process. */
uint64_t sim_own_pid_namespace(void);

/* The file locks of a record: for its process and forked children, and for its process alone. */
struct flock sim_record_lock(const struct sim_record *record);
struct flock sim_record_process_lock(const struct sim_record *record);

/* The pid of another process in this process's namespace, 0 if it is not visible, or -1 if it has ended. */
pid_t sim_record_pid(const struct sim_record *record);

/*
 * Called with the segment's lock held. Reap clears the records of processes that have ended, once their bytes are free.
 */
void sim_shared_file_leave(struct sim_shared_file *shared, const struct sim_record *record);
void sim_record_clear(struct sim_record *record);
void sim_records_reap(void);

#endif
