/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Functions that libgpushare.so exports in addition to the driver's symbols. The in-kernel part calls them through
 * ctypes, and so do tests. All of them can be called from any thread at any time, also when the interposer is inactive.
 */
#ifndef GPUSHARE_CLIENT_API_H
#define GPUSHARE_CLIENT_API_H

#include <stddef.h>
#include <stdint.h>

#define GPUSHARE_EXPORT __attribute__((visibility("default")))

/* The version of the library, as in pyproject.toml. */
GPUSHARE_EXPORT const char *gpushare_version(void);

/*
 * Returns 1 if attached to a scheduler, 0 before the first cuInit, and -1 if the interposer is inactive or the
 * scheduler refused this process. If `why` is not NULL, it receives the reason.
 */
GPUSHARE_EXPORT int gpushare_attached(const char **why);

/* A cell begins or ends. `msg_id` is the id of the execute_request; it may be NULL. Never blocks. */
GPUSHARE_EXPORT void gpushare_cell_begin(const char *msg_id);
GPUSHARE_EXPORT void gpushare_cell_end(const char *msg_id);

/*
 * With `on` = 1, memory that is allocated from now on may exceed the GPU's (docs/explanation/memory.md). Returns 0, or
 * -1 if that is not possible. Then *why, if `why` is not NULL, points to a static sentence with the reason. A call
 * before the first cuInit is only recorded; if it cannot be honoured, cuInit prints the reason.
 */
GPUSHARE_EXPORT int gpushare_oversubscribe(int on, const char **why);

/* Returns 1 if oversubscription is on. */
GPUSHARE_EXPORT int gpushare_oversubscribes(void);

/* Returns how many other groups are waiting for the GPU, as last reported by the scheduler. */
GPUSHARE_EXPORT uint32_t gpushare_contended(void);

/* Returns 1 if a wait of this process was cancelled by an interrupt since the last call. */
GPUSHARE_EXPORT int gpushare_take_interrupt(void);

/*
 * Sends one control request (JSON text) over a connection of its own and copies the reply (JSON text, NUL-terminated)
 * to `reply`. Waits for at most 5 s. Returns the reply's length, or a negative errno (-EMSGSIZE if `size` is too
 * small, -ENOENT if there is no scheduler).
 */
GPUSHARE_EXPORT int64_t gpushare_control(const char *request, char *reply, size_t size);

/*
 * For the NVML shim: the bytes that this process holds on the device, and the device's size. Returns 0 if the
 * interposer does not manage the device, so that NVML's own figures are right.
 */
GPUSHARE_EXPORT int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);

/* Returns the lease group of this process: the value of GPUSHARE_GROUP, or a name made from the pid. */
GPUSHARE_EXPORT const char *gpushare_group(void);

#endif
