/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Host memory whose data the scheduler has moved to a disk (pool.h, "Where the data of a chunk is"). The scheduler
 * reads it back for a client that gets the GPU. The client only waits.
 */
#ifndef GPUSHARE_MEMORY_HOST_DISK_H
#define GPUSHARE_MEMORY_HOST_DISK_H

struct gs_host_record;

/* Around all use of the contents of host memory. The calls nest. */
void gs_host_begin_moving(void);
void gs_host_end_moving(void);

enum gs_host_where {
    GS_HOST_HERE,
    GS_HOST_COMES, /* not in memory yet */
    GS_HOST_FAILS  /* cannot be read, at least at the moment */
};

/*
 * Where the data of a record is that needs units. While this process is moving, HERE is final. Calls are serialized by
 * the caller.
 */
enum gs_host_where gs_host_where(const struct gs_host_record *record);

#endif
