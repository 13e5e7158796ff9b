/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hibernator: asks the driver to checkpoint other processes and to restore them, for as long as a scheduler lives
 * (serve.h), or once, to wake one (wake.h). It is no client of ours.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/say.h"
#include "driver.h"
#include "serve.h"
#include "wake.h"

static void stay_plain(char **argv)
{
    /* A GPU that is hidden from us would not be kept awake, and a tool that watches CUDA programs is not for us. */
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_INJECTION64_PATH");
    setenv("GPUSHARE_DISABLE", "1", 1);
    if (getenv("LD_PRELOAD") == NULL)
        return;
    /* Whatever it was, it is for the program that started us. If there is no way to be rid of it, we go on. */
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
        gs_say("use: gpushare-hibernator --driver PATH [--wake PID [UUID=BYTES]]");
        return 2;
    }
    if (!hib_driver_open(argv[2]))
        return 1;
    if (waking) {
        bool awake = hib_wake((pid_t)pid, &needs);
        /* Who ignores its children does not learn how we end. */
        if (awake)
            puts("awake");
        fflush(stdout);
        /* As below. */
        _exit(awake ? 0 : 1);
    }
    /* It lives as long as its input: signals that end a terminal's session or a service are for the scheduler. */
    for (size_t i = 0; i < 4; i++)
        signal((const int[]){SIGINT, SIGTERM, SIGHUP, SIGPIPE}[i], SIG_IGN);
    hib_serve();
    /* Without the driver's own end, which might wait for a call that never ends. */
    _exit(0);
}
