/* SPDX-License-Identifier: BSD-3-Clause */
#include "wake.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/print.h"
#include "driver.h"

#define SECONDS 60
#define POLL_MS 50
#define LOCK_MS 5000
/* The pauses before a restore is tried again, because another process's memory may be leaving the GPU. */
static const unsigned pauses_ms[] = {500, 1000, 2000};
#define PAUSES (sizeof(pauses_ms) / sizeof(pauses_ms[0]))

static void pause_for(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void too_late(int number)
{
    (void)number;
    static const char sentence[] = "gpushare: the driver did not wake the process in time\n";
    ssize_t ignored = write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    (void)ignored;
    _exit(1);
}

static void arm(void)
{
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = too_late}, NULL);
    sigprocmask(SIG_UNBLOCK, &alarms, NULL);
    alarm(SECONDS);
}

static bool failed(const char *step, pid_t pid, CUresult result)
{
    gs_print("process %d cannot be woken: %s returned %s", (int)pid, step, hib_driver_name(result));
    return false;
}

static bool lacks_room(pid_t pid, const struct hib_needs *needs, uint64_t left)
{
    gs_print("process %d cannot be woken: its GPU has %llu MiB free, and it needs %llu MiB", (int)pid,
             (unsigned long long)(left >> 20), (unsigned long long)(needs->bytes >> 20));
    return false;
}

bool hib_wake(pid_t pid, const struct hib_needs *needs)
{
    arm();
    size_t pauses = 0;
    /* true: no lock of a hibernator that has ended is pending, because this program's lock came after it */
    bool alone = false;
    for (;;) {
        bool fits;
        uint64_t left = 0;
        CUprocessState state;
        CUresult result = hib_driver_state(pid, &state);
        if (result != CUDA_SUCCESS)
            return failed("cuCheckpointProcessGetState", pid, result);
        switch (state) {
        case CU_PROCESS_STATE_RUNNING:
            if (alone)
                return true;
            hib_driver_lock(pid, LOCK_MS);
            alone = true;
            break;
        case CU_PROCESS_STATE_LOCKED:
            result = hib_driver_unlock(pid);
            alone = true;
            /* A call that was running when the state was queried may have ended since. */
            if (result == CUDA_ERROR_ILLEGAL_STATE)
                pause_for(POLL_MS);
            else if (result != CUDA_SUCCESS)
                return failed("cuCheckpointProcessUnlock", pid, result);
            break;
        case CU_PROCESS_STATE_CHECKPOINTED:
            fits = hib_has_room(needs, &left);
            result = fits ? hib_driver_restore(pid, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
            if (result != CUDA_SUCCESS && pauses == PAUSES)
                return fits ? failed("cuCheckpointProcessRestore", pid, result) : lacks_room(pid, needs, left);
            if (result != CUDA_SUCCESS)
                pause_for(pauses_ms[pauses++]);
            break;
        case CU_PROCESS_STATE_FAILED:
            gs_print("process %d cannot be woken: its driver failed when it was checkpointed or restored", (int)pid);
            return false;
        default: /* another program's call is running */
            pause_for(POLL_MS);
        }
    }
}
