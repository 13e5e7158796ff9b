/* SPDX-License-Identifier: BSD-3-Clause */
/* The answers to queries about an address. */
#ifndef GPUSHARE_MEMORY_VIEW_H
#define GPUSHARE_MEMORY_VIEW_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an address belongs to. */
struct gs_memory_view {
    CUdeviceptr base;
    size_t size;
    CUdevice device;
    CUcontext context;
    uint64_t id;
    bool managed;
    /* freed in stream order, although the stream has not reached the free: the driver no longer recognises it */
    bool freed;
    bool hidden; /* mapped without access for any device: the driver does not report its bounds */
};

#endif
