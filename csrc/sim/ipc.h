/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory between processes that have no descriptor of each other: a handle says where the exporter has the file open,
 * and the importer opens it there (/proc/<pid>/fd).
 */
#ifndef SIM_IPC_H
#define SIM_IPC_H

#include "memory.h"

/* Fits in a CUipcMemHandle, a CUipcEventHandle and a CUmemPoolPtrExportData. */
struct sim_shared {
    uint64_t magic;
    uint64_t id; /* of what is shared: an allocation, an event, a pool */
    uint64_t inode, size;
    int pid, fd;
    unsigned device;
    unsigned unused; /* instead of padding: handles are compared as bytes */
};

enum sim_shared_kind { SIM_SHARED_MEMORY, SIM_SHARED_EVENT, SIM_SHARED_POINTER };

struct sim_shared sim_shared_describe(enum sim_shared_kind kind, int fd, uint64_t id, uint64_t size, unsigned device);

/* A descriptor of the file, or -1: it is not such a handle, or its exporter has closed the file or ended. */
int sim_shared_open(enum sim_shared_kind kind, const struct sim_shared *shared);

/* Maps another process's file as memory of the context. */
CUresult sim_shared_map(struct sim_context *context, const struct sim_shared *shared, int fd, struct sim_pool *pool,
                        uint64_t *base);

#endif
