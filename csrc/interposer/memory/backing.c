/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/backing.h"

#include "base/print.h"
#include "base/session.h"
#include "loader/real.h"
#include "memory/block.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct gs_backing of;
    /* Read without a lock. */
    enum { OVERSUBSCRIBE_UNSET, OVERSUBSCRIBE_NEVER, OVERSUBSCRIBE_NOW, OVERSUBSCRIBE_BEFORE } oversubscribe;
} backing;

static int attribute(CUdevice_attribute which, CUdevice ordinal)
{
    int value = 0;
    return GS_REAL(cuDeviceGetAttribute)(&value, which, ordinal) == CUDA_SUCCESS ? value : 0;
}

bool gs_backing_managed_forbidden(void)
{
    const char *forbid = getenv("GPUSHARE_FORBID_MANAGED");
    return forbid != NULL && strcmp(forbid, "1") == 0;
}

/* Checks all devices. NULL if they can do it. */
static const char *why_no_oversubscription(void)
{
    if (gs_backing_managed_forbidden())
        return "GPUSHARE_FORBID_MANAGED=1 disables managed memory, which a process needs to hold more than the GPU has";
    if (backing.of.usual == NULL)
        return "the backend plain keeps all memory on the GPU; to hold more than the GPU has, use the backend swap or "
               "managed";
    int count = 0;
    if (GS_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return "the driver does not report what its devices can do";
    for (int i = 0; i < count; i++)
        if (!attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, i))
            return "the device cannot migrate managed memory on demand, which a process needs to hold more than the "
                   "GPU has";
    return NULL;
}

static int oversubscription(void)
{
    return __atomic_load_n(&backing.oversubscribe, __ATOMIC_ACQUIRE);
}

bool gs_memory_oversubscribe(bool on, const char **why)
{
    *why = NULL;
    if (on && gs_session_attached())
        *why = why_no_oversubscription();
    else if (on && gs_backing_managed_forbidden())
        *why = why_no_oversubscription();
    if (*why != NULL)
        return false;
    int now = oversubscription();
    bool before = now == OVERSUBSCRIBE_BEFORE || (now == OVERSUBSCRIBE_NOW && gs_session_attached());
    int then = on ? OVERSUBSCRIBE_NOW : before ? OVERSUBSCRIBE_BEFORE : OVERSUBSCRIBE_NEVER;
    __atomic_store_n(&backing.oversubscribe, then, __ATOMIC_RELEASE);
    return true;
}

bool gs_memory_oversubscribes(void)
{
    return oversubscription() == OVERSUBSCRIBE_NOW;
}

bool gs_memory_oversubscribed(void)
{
    return oversubscription() == OVERSUBSCRIBE_NOW || oversubscription() == OVERSUBSCRIBE_BEFORE;
}

/*
 * A call before the first cuInit wins over the environment. If oversubscription is not possible, sharing continues
 * without it.
 */
static void begin_oversubscription(void)
{
    const char *wanted = getenv("GPUSHARE_OVERSUBSCRIBE");
    if (oversubscription() == OVERSUBSCRIBE_UNSET && wanted != NULL && strcmp(wanted, "1") == 0)
        backing.oversubscribe = OVERSUBSCRIBE_NOW;
    else if (wanted != NULL && *wanted != '\0' && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0)
        gs_print(
            "ignored GPUSHARE_OVERSUBSCRIBE=%s: use 1 to let this process hold more than the GPU has, and 0 otherwise",
            wanted);
    const char *why = gs_memory_oversubscribes() ? why_no_oversubscription() : NULL;
    if (why == NULL)
        return;
    gs_print("this process cannot hold more than the GPU has: %s", why);
    backing.oversubscribe = OVERSUBSCRIBE_NEVER;
}

void gs_backing_set(const struct gs_backing *chosen)
{
    backing.of = *chosen;
    begin_oversubscription();
}

const struct gs_backing *gs_backing(void)
{
    return &backing.of;
}

bool gs_memory_can_move(void)
{
    return backing.of.usual != NULL;
}

const struct gs_backend *gs_backing_of_new(void)
{
    return gs_memory_oversubscribes() ? backing.of.managed : backing.of.usual;
}
