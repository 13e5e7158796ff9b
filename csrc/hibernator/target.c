/* SPDX-License-Identifier: BSD-3-Clause */
#include "target.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the number of a line "NAME:\tNUMBER" of a file in /proc. Returns false if there is none. */
static bool read_field(const char *path, const char *name, long *number)
{
    char text[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof(text) - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        size_t size = strlen(name);
        if (strncmp(line, name, size) != 0 || line[size] != ':')
            continue;
        char *end = NULL;
        *number = strtol(line + size + 1, &end, 10);
        return end != line + size + 1 && *end == '\0';
    }
    return false;
}

bool hib_target_has_ended(int pidfd)
{
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    return poll(&ended, 1, 0) != 0;
}

const char *hib_target_find(int pidfd, bool undebugged, pid_t *pid)
{
    char path[64];
    long number, tracer;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    /* Only the Linux kernel writes this line, and only for a pidfd. */
    if (!read_field(path, "Pid", &number) || number < 0 || hib_target_has_ended(pidfd))
        return HIB_TARGET_GONE;
    if (number == 0)
        return HIB_TARGET_CONTAINER;
    *pid = (pid_t)number;
    snprintf(path, sizeof(path), "/proc/%ld/status", number);
    if (undebugged && read_field(path, "TracerPid", &tracer) && tracer != 0)
        return HIB_TARGET_DEBUGGER;
    return NULL;
}
