/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Carries out the scheduler's orders about memory: restore it for a lease, evict it, and prepare host memory. For the
 * helper thread.
 */
#ifndef GPUSHARE_CLIENT_GRANTS_H
#define GPUSHARE_CLIENT_GRANTS_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>

void gs_grants_grant(const struct gpushare_lease *grant);
void gs_grants_revoke(const struct gpushare_lease *revoke);
void gs_grants_step(const struct gpushare_lease *step);
void gs_grants_evict(const struct gpushare_evict *evict);
void gs_grants_prepare_bytes(const struct gpushare_prepare *prepare);

/*
 * Prepares host memory as last ordered. Page-locking needs a context; before the first one, there is nothing to move.
 */
void gs_grants_prepare(void);

/* Restores all memory without a scheduler. If the GPU has no room, calls lack_locked under the client's lock. */
void gs_grants_restore_alone(void (*lack_locked)(void));

#endif
