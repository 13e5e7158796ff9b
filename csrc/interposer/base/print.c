/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_line(const char *format, va_list arguments)
{
    char line[512] = "gpushare: ";
    size_t prefix = strlen(line);
    int n = vsnprintf(line + prefix, sizeof(line) - prefix - 1, format, arguments);
    if (n < 0)
        return;
    size_t length = prefix + (size_t)n;
    if (length > sizeof(line) - 2)
        length = sizeof(line) - 2;
    line[length++] = '\n';
    /*
     * One write, so that lines of several threads do not mix. A failure is ignored, because nothing can be done about
     * it.
     */
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}

void gs_print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void gs_debug(const char *format, ...)
{
    const char *level = getenv("GPUSHARE_LOG");
    if (level == NULL || strcmp(level, "debug") != 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}
