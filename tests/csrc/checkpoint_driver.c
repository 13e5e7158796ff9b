/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A driver that does nothing but keep the checkpoint states of other processes, as files of the folder $STAND_IN:
 * state-PID has one's state; calls has a line for each call; a file named like a step is what becomes of it: a
 * CUresult, "once RESULT", "hang" (until the file is gone) or "die" (once). gpus has a digit for each GPU, the bytes of
 * its UUID.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *path_of(const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", getenv("STAND_IN"), name);
    return path;
}

static int read_file(const char *name, char *text, size_t size)
{
    char path[512];
    int fd = open(path_of(name, path, sizeof(path)), O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return 1;
}

static void write_file(const char *name, int flags, const char *format, ...)
{
    char path[512], text[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    int fd = open(path_of(name, path, sizeof(path)), O_WRONLY | O_CREAT | flags, 0600);
    if (write(fd, text, (size_t)length) != length)
        abort();
    close(fd);
}

static CUprocessState state_of(int pid)
{
    char name[32], text[16];
    snprintf(name, sizeof(name), "state-%d", pid);
    return read_file(name, text, sizeof(text)) ? (CUprocessState)atoi(text) : CU_PROCESS_STATE_RUNNING;
}

static CUresult begin(const char *step, int pid)
{
    char path[512], text[64];
    write_file("calls", O_APPEND, "%s %d\n", step, pid);
    if (!read_file(step, text, sizeof(text)))
        return CUDA_SUCCESS;
    path_of(step, path, sizeof(path));
    if (strcmp(text, "hang") == 0) {
        while (access(path, F_OK) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        return CUDA_SUCCESS;
    }
    if (strcmp(text, "die") == 0) {
        unlink(path);
        _exit(9);
    }
    if (strncmp(text, "once ", 5) == 0) {
        unlink(path);
        return (CUresult)atoi(text + 5);
    }
    return (CUresult)atoi(text);
}

static CUresult change(const char *step, int pid, CUprocessState from, CUprocessState to)
{
    char name[32];
    CUresult result = begin(step, pid);
    if (result != CUDA_SUCCESS)
        return result;
    if (state_of(pid) != from)
        return CUDA_ERROR_ILLEGAL_STATE;
    snprintf(name, sizeof(name), "state-%d", pid);
    write_file(name, O_TRUNC, "%d", (int)to);
    return CUDA_SUCCESS;
}

/* What a driver is permitted: sockets of a network, Unix sockets, and to execute programs. */
static const char *confinement(void)
{
    static char text[64];
    int network = socket(AF_INET, SOCK_STREAM, 0), local = socket(AF_UNIX, SOCK_STREAM, 0);
    char *const nothing[] = {NULL};
    bool executes = execve("/nonexistent", nothing, nothing) != 0 && errno == ENOENT;
    snprintf(text, sizeof(text), "network=%d unix=%d execute=%d", network >= 0, local >= 0, executes);
    close(network);
    close(local);
    return text;
}

CUresult cuInit(unsigned flags)
{
    const char *preload = getenv("LD_PRELOAD"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    write_file("begun", O_TRUNC, "%s %s", preload != NULL ? preload : "-", visible != NULL ? visible : "-");
    write_file("confined", O_TRUNC, "%s", confinement());
    printf("a driver may print\n");
    fflush(stdout);
    return begin("init", 0);
}

CUresult cuDriverGetVersion(int *version)
{
    char text[16];
    *version = read_file("version", text, sizeof(text)) ? atoi(text) : 13000;
    return begin("driver", 0);
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    static const struct {
        CUresult result;
        const char *name;
    } names[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
        {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
        {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
        {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].result == result) {
            *name = names[i].name;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    char text[64];
    *count = read_file("gpus", text, sizeof(text)) ? (int)strlen(text) : 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    char text[64] = "1";
    read_file("gpus", text, sizeof(text));
    memset(uuid->bytes, text[device] - '0', sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

#ifndef OLD_DRIVER
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    CUresult result = begin("state", pid);
    *state = state_of(pid);
    return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    if (args->timeoutMs == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return change("lock", pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    (void)args;
    return change("checkpoint", pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    char pairs[512] = "";
    for (unsigned i = 0; i < args->gpuPairsCount; i++)
        sprintf(pairs + strlen(pairs), "%d%d ", args->gpuPairs[i].oldUuid.bytes[0], args->gpuPairs[i].newUuid.bytes[0]);
    if (pairs[0] != '\0')
        write_file("pairs", O_APPEND, "%s\n", pairs);
    return change("restore", pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    (void)args;
    return change("unlock", pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
#endif
