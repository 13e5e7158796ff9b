/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The scheduler's orders about memory: to bring it to the GPU for a lease, to take it away, and to have host memory
 * ready. For the helper thread.
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

/* Pages are locked in a context: before there is one, there is nothing to move either. */
void gs_grants_prepare(void);

/*
 * Brings all memory to the GPU without a scheduler, for which there may be no room: lack_locked is called then,
 * under the client's lock.
 */
void gs_grants_restore_alone(void (*lack_locked)(void));

#endif
