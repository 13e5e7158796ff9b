/* SPDX-License-Identifier: BSD-3-Clause */
/* A program, or a plugin, that was linked with -lcuda: says which library its cuDriverGetVersion is in. */
#include <dlfcn.h>
#include <stdio.h>

int cuDriverGetVersion(int *version);
int report(void);

int report(void)
{
    Dl_info info;
    if (dladdr((void *)cuDriverGetVersion, &info) == 0)
        return 1;
    printf("%s\n", info.dli_fname);
    fflush(stdout);
    return 0;
}

int main(void)
{
    return report();
}
