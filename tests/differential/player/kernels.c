/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the differential tester, as a module for the simulated driver; kernels.ptx has them for a GPU. */
#include "kernel_abi.h"
#include "mailbox.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static void mix_part(unsigned char *a, unsigned char *b, unsigned long first, unsigned long end, unsigned key)
{
    for (unsigned long i = first; i < end; i++) {
        unsigned char sum = (unsigned char)(a[i] * 5u + b[i] + key + i);
        b[i] = (unsigned char)((b[i] ^ a[i]) * 3u + 1u);
        a[i] = sum;
    }
}

/*
 * Reads and writes both blocks; two of these on the same bytes do not commute. It touches one half as soon as it begins
 * and the other once its time is over, so that memory must be there all the while.
 */
EXPORT void mix(unsigned char *a, unsigned char *b, unsigned long count, unsigned key, unsigned long nanoseconds)
{
    struct timespec rest = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
    mix_part(a, b, 0, count / 2, key);
    while (nanoseconds != 0 && nanosleep(&rest, &rest) != 0 && errno == EINTR)
        continue;
    mix_part(a, b, count / 2, count, key);
}

/* Waits until an address is posted, and writes there. It runs before that memory is allocated. */
EXPORT void post(struct mailbox *mailbox)
{
    while (__atomic_load_n(&mailbox->ready, __ATOMIC_ACQUIRE) == 0)
        usleep(20);
    for (unsigned long i = 0; i < mailbox->count; i++)
        mailbox->at[i] = (unsigned char)(mailbox->key + i * 7);
}

/* Writes where nothing is. */
EXPORT void fault(unsigned char *at)
{
    *(volatile unsigned char *)at = 1;
}

/* Counts, and decides whether a condition holds. Kernels of kernels.ptx cannot: that takes a library of the runtime's.
 */
EXPORT void decide(struct gpushare_sim_condition *condition, unsigned char *at, unsigned long of)
{
    *at = (unsigned char)(*at + 1);
    condition->value = *at % of != 0;
}

static void launch_mix(void *const *arguments, const unsigned *grid, const unsigned *block,
                       unsigned long dynamic_shared)
{
    (void)grid;
    (void)block;
    (void)dynamic_shared;
    mix(*(unsigned char **)arguments[0], *(unsigned char **)arguments[1], *(unsigned long *)arguments[2],
        *(unsigned *)arguments[3], *(unsigned long *)arguments[4]);
}

static void launch_post(void *const *arguments, const unsigned *grid, const unsigned *block,
                        unsigned long dynamic_shared)
{
    (void)grid;
    (void)block;
    (void)dynamic_shared;
    post(*(struct mailbox **)arguments[0]);
}

static void launch_fault(void *const *arguments, const unsigned *grid, const unsigned *block,
                         unsigned long dynamic_shared)
{
    (void)grid;
    (void)block;
    (void)dynamic_shared;
    fault(*(unsigned char **)arguments[0]);
}

static void launch_decide(void *const *arguments, const unsigned *grid, const unsigned *block,
                          unsigned long dynamic_shared)
{
    (void)grid;
    (void)block;
    (void)dynamic_shared;
    decide(*(struct gpushare_sim_condition **)arguments[0], *(unsigned char **)arguments[1],
           *(unsigned long *)arguments[2]);
}

static const unsigned sizes[] = {8, 8, 8, 4, 8}, offsets[] = {0, 8, 16, 24, 32};

static const struct gpushare_sim_kernel kernels[] = {{.function = (const void *)mix,
                                                      .launch = launch_mix,
                                                      .argument_count = 5,
                                                      .argument_sizes = sizes,
                                                      .argument_offsets = offsets},
                                                     {.function = (const void *)post,
                                                      .launch = launch_post,
                                                      .argument_count = 1,
                                                      .argument_sizes = sizes,
                                                      .argument_offsets = offsets},
                                                     {.function = (const void *)fault,
                                                      .launch = launch_fault,
                                                      .argument_count = 1,
                                                      .argument_sizes = sizes,
                                                      .argument_offsets = offsets},
                                                     {.function = (const void *)decide,
                                                      .launch = launch_decide,
                                                      .argument_count = 3,
                                                      .argument_sizes = sizes,
                                                      .argument_offsets = offsets}};

EXPORT const struct gpushare_sim_module gpushare_sim_module = {
    .abi = GPUSHARE_SIM_KERNEL_ABI, .kernel_count = 4, .kernels = kernels};
