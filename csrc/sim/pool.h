/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "memory.h"

struct sim_pool;

/* Memory of a pool is freed, and is in its reserve from now on. Called with the table's lock held. */
void sim_pool_take_back(struct sim_range *range);

/* A stream, event or context was synchronised: pools return memory above their thresholds. */
void sim_pool_settle(void);

/* The device's pools return their whole reserve. */
void sim_pool_trim_device(unsigned device);

/* Whether kernels of the device may use memory of the pool. */
bool sim_pool_is_accessible(const struct sim_pool *pool, unsigned device);

#endif
