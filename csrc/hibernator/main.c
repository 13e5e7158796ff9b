/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hibernator: asks the driver to checkpoint and restore other processes. It does so as long as a scheduler lives
 * (serve.h), as a service for schedulers (listen.h), or once, to wake a process (wake.h). It is not a client of
 * gpushare.
 */
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/print.h"
#include "confine.h"
#include "driver.h"
#include "listen.h"
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

static void ignore(const int *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        signal(numbers[i], SIG_IGN);
}

/* Does not run the driver's exit code, which might wait for a call that never ends. */
static _Noreturn void leave(int status)
{
    fflush(stdout);
    _exit(status);
}

static int usage(void)
{
    gs_print("usage: gpushare-hibernator --driver PATH [--wake PID [UUID=BYTES] | --listen SOCKET [UID]]");
    return 2;
}

static bool read_number(const char *text, unsigned long most, unsigned long *number)
{
    char *end = NULL;
    *number = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && *number <= most;
}

static int wake(int argc, char **argv)
{
    struct hib_needs needs = {.bytes = 0};
    unsigned long pid;
    if (argc > 6 || !read_number(argv[4], INT_MAX, &pid) || pid == 0 || (argc == 6 && !hib_read_needs(argv[5], &needs)))
        return usage();
    if (!hib_driver_open(argv[2]))
        return 1;
    bool awake = hib_wake((pid_t)pid, &needs);
    /* A parent that ignores its children does not get the exit status. */
    if (awake)
        puts("awake");
    leave(awake ? 0 : 1);
}

static int listen_for_schedulers(int argc, char **argv)
{
    unsigned long allowed = geteuid();
    if (argc > 6 || (argc == 6 && !read_number(argv[5], UINT32_MAX - 1, &allowed)))
        return usage();
    if (!hib_confine() || !hib_driver_open(argv[2]))
        return 1;
    /* Last, because it takes the path from a hibernator that still serves. */
    int listener = hib_open_socket(argv[4], (uid_t)allowed);
    if (listener < 0)
        return 1;
    ignore((const int[]){SIGPIPE}, 1);
    hib_listen(listener, (uid_t)allowed);
    leave(0);
}

int main(int argc, char **argv)
{
    stay_plain(argv);
    if (argc < 3 || strcmp(argv[1], "--driver") != 0)
        return usage();
    if (argc > 4 && strcmp(argv[3], "--wake") == 0)
        return wake(argc, argv);
    if (argc > 4 && strcmp(argv[3], "--listen") == 0)
        return listen_for_schedulers(argc, argv);
    if (argc > 3)
        return usage();
    if (!hib_driver_open(argv[2]))
        return 1;
    /*
     * The hibernator lives as long as its input. Signals that end a terminal session or a service are meant for the
     * scheduler.
     */
    ignore((const int[]){SIGINT, SIGTERM, SIGHUP, SIGPIPE}, 4);
    hib_serve();
    leave(0);
}
