/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls functions of small_driver.c that check their arguments, beginning with the one that the command line names:
 * the call that opens the driver must reach it with all of its arguments, in whatever registers they are.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int cuParamSetf(void *function, int offset, float value);
int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function, void *sizes, size_t dynamic,
                                              int limit, unsigned int flags);
int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                   unsigned int bz, unsigned int shared, void *stream, void **parameters, void **extra);

enum { CALLS = 3 };

static int call(int which)
{
    int grid = 0;
    int block = 0;
    switch (which) {
    case 0:
        return cuParamSetf((void *)0x11, 22, 3.5f);
    case 1:
        return cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, (void *)3, (void *)4, 5, 6, 7) != 0 ||
               grid != 1 || block != 2;
    default:
        return cuLaunchKernel((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void *)10, (void *)11);
    }
}

int main(int argc, char **argv)
{
    int first = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 0; i < 2 * CALLS; i++)
        printf("%d ", call((first + i) % CALLS));
    return 0;
}
