/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Shares memory between processes without passing descriptors. A handle names the exporter's descriptor, and the
 * importer opens that file through /proc/<pid>/fd.
 */
#ifndef SIM_IPC_H
#define SIM_IPC_H

#include "memory.h"

/* Fits into a CUipcMemHandle, a CUipcEventHandle and a CUmemPoolPtrExportData. */
struct sim_shared {
    uint64_t magic;
    uint64_t id; /* identifies the allocation, event or pool */
    uint64_t inode, size;
    int pid, fd;
    unsigned device;
    unsigned unused; /* in place of padding, because handles are compared as bytes */
};

enum sim_shared_kind { SIM_SHARED_MEMORY, SIM_SHARED_EVENT, SIM_SHARED_POINTER };

struct sim_shared sim_shared_describe(enum sim_shared_kind kind, int fd, uint64_t id, uint64_t size, unsigned device);

/*
 * Returns a descriptor of the file, or -1 if the handle is of another kind, or its exporter has closed the file or
 * ended.
 */
int sim_shared_open(enum sim_shared_kind kind, const struct sim_shared *shared);

/* Maps another process's file as memory of the context. */
CUresult sim_shared_map(struct sim_context *context, const struct sim_shared *shared, int fd, struct sim_pool *pool,
                        uint64_t *base);

#endif
