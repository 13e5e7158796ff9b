/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/keeper.h"

#include <stddef.h>

static const struct gs_keeper *keeper;

const struct gs_keeper *gs_keeper(void)
{
    return __atomic_load_n(&keeper, __ATOMIC_ACQUIRE);
}

void gs_keeper_set(const struct gs_keeper *of_client)
{
    __atomic_store_n(&keeper, of_client, __ATOMIC_RELEASE);
}
