/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hibernator: asks the driver to checkpoint and restore other processes. It does so as long as a scheduler lives
 * (serve.h), or once, to wake a process (wake.h). It is not a client of gpushare.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/print.h"
#include "driver.h"
#include "serve.h"
#include "wake.h"

static void stay_plain(char **argv)
{
    /* A hidden GPU would not be kept awake, and tools that watch CUDA programs must not watch this one. */
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_INJECTION64_PATH");
    setenv("GPUSHARE_DISABLE", "1", 1);
    if (getenv("LD_PRELOAD") == NULL)
        return;
    /*
     * Libraries were preloaded for the program that started this one. If the restart fails, the program continues with
     * them.
     */
    unsetenv("LD_PRELOAD");
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    stay_plain(argv);
    char *end = NULL;
    struct hib_needs needs = {.bytes = 0};
    long pid = argc == 5 || argc == 6 ? strtol(argv[4], &end, 10) : 0;
    bool waking = pid > 0 && pid <= INT_MAX && *end == '\0' && strcmp(argv[3], "--wake") == 0 &&
                  (argc == 5 || hib_read_needs(argv[5], &needs));
    if (argc < 3 || strcmp(argv[1], "--driver") != 0 || (argc > 3 && !waking)) {
        gs_print("usage: gpushare-hibernator --driver PATH [--wake PID [UUID=BYTES]]");
        return 2;
    }
    if (!hib_driver_open(argv[2]))
        return 1;
    if (waking) {
        bool awake = hib_wake((pid_t)pid, &needs);
        /* A parent that ignores its children does not get the exit status. */
        if (awake)
            puts("awake");
        fflush(stdout);
        /* Does not run the driver's exit code, as below. */
        _exit(awake ? 0 : 1);
    }
    /*
     * The hibernator lives as long as its input. Signals that end a terminal session or a service are meant for the
     * scheduler.
     */
    for (size_t i = 0; i < 4; i++)
        signal((const int[]){SIGINT, SIGTERM, SIGHUP, SIGPIPE}[i], SIG_IGN);
    hib_serve();
    /* Does not run the driver's exit code, which might wait for a call that never ends. */
    _exit(0);
}
