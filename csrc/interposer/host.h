/* SPDX-License-Identifier: BSD-3-Clause */
/* Host memory for swapped pieces: page-locked, in huge pages where they can be had, not copied by fork. */
#ifndef GPUSHARE_HOST_H
#define GPUSHARE_HOST_H

#include <stddef.h>
#include <stdint.h>

struct gs_host_piece;

/* Needs a current context. NULL if the host has no room. */
struct gs_host_piece *gs_host_take(size_t bytes);
void gs_host_give(struct gs_host_piece *piece);
void *gs_host_address(const struct gs_host_piece *piece);

/* Bytes in use and kept for use again. */
uint64_t gs_host_bytes(void);

void gs_host_after_fork(void);

#endif
