/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/promises.h"

#include <stddef.h>

static const struct gs_promises *promises;

const struct gs_promises *gs_promises(void)
{
    return __atomic_load_n(&promises, __ATOMIC_ACQUIRE);
}

void gs_promises_set(const struct gs_promises *of_client)
{
    __atomic_store_n(&promises, of_client, __ATOMIC_RELEASE);
}
