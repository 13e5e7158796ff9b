/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/keeper.h"

#include <stddef.h>

static const struct gs_keeper *keeper;

const struct gs_keeper *gs_keeper(void)
{
    /* The thread has seen a gate shut, which was so only after there was a keeper: it is to see that, too. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&keeper, __ATOMIC_RELAXED);
}

void gs_keeper_set(const struct gs_keeper *of_client)
{
    __atomic_store_n(&keeper, of_client, __ATOMIC_RELEASE);
}
