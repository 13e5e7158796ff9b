/* SPDX-License-Identifier: BSD-3-Clause */
/* What queries about an address return. */
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
    bool freed;  /* in the order of a stream, which has not got there yet: the driver does not recognise it any more */
    bool hidden; /* mapped, and no device may touch it: the driver does not say where it begins and ends */
};

#endif
