/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What libgpushare.so exports beside the driver's symbols: for the in-kernel part (through ctypes) and for tests.
 * All are safe to call from any thread, at any time, also where the interposer is out of the way.
 */
#ifndef GPUSHARE_CLIENT_API_H
#define GPUSHARE_CLIENT_API_H

#include <stddef.h>
#include <stdint.h>

#define GPUSHARE_EXPORT __attribute__((visibility("default")))

/* The version of the library, as in pyproject.toml. */
GPUSHARE_EXPORT const char *gpushare_version(void);

/*
 * 1 if attached to a scheduler, 0 if not yet needed (no cuInit), -1 if out of the way or refused by the scheduler;
 * `why` says why, if not NULL.
 */
GPUSHARE_EXPORT int gpushare_attached(const char **why);

/* A cell begins or ends. msg_id: of the execute_request; may be NULL. Never blocks. */
GPUSHARE_EXPORT void gpushare_cell_begin(const char *msg_id);
GPUSHARE_EXPORT void gpushare_cell_end(const char *msg_id);

/*
 * 1: memory that is allocated from now on may be more than the GPU has (memory.md); 0: no longer. Returns 0, or
 * -1 where that is not possible: *why, if not NULL, is the reason then, in one sentence that stays. Before the first
 * cuInit it is only noted, and a process that cannot do it says so then.
 */
GPUSHARE_EXPORT int gpushare_oversubscribe(int on, const char **why);

/* 1 if it is on. */
GPUSHARE_EXPORT int gpushare_oversubscribes(void);

/* How many other groups wait for the GPU, as last heard. */
GPUSHARE_EXPORT uint32_t gpushare_contended(void);

/* 1 if a wait of this process was cancelled (interrupt) since the last call. */
GPUSHARE_EXPORT int gpushare_take_interrupt(void);

/*
 * Sends one control request (JSON text) over a connection of its own and copies the reply (JSON text, NUL-terminated)
 * to `reply`. Waits for at most 5 s. Returns the reply's length, or a negative errno (-EMSGSIZE if `size` is too
 * small, -ENOENT if there is no scheduler).
 */
GPUSHARE_EXPORT int64_t gpushare_control(const char *request, char *reply, size_t size);

/*
 * For the NVML shim: what this process holds of the device, and the device's size, in bytes. 0: we do not manage it,
 * NVML's own figures are right.
 */
GPUSHARE_EXPORT int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);

/* The lease group of this process, as in GPUSHARE_GROUP or made up from the pid. */
GPUSHARE_EXPORT const char *gpushare_group(void);

#endif
