/* SPDX-License-Identifier: BSD-3-Clause */
#include "thread.h"

#include <stdarg.h>
#include <stdio.h>

void wrong(struct thread *thread, const char *format, ...)
{
    if (thread->problem_line != 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(thread->problem, sizeof(thread->problem), format, arguments);
    va_end(arguments);
    thread->problem_line = thread->current != NULL ? thread->current->line : ~0u;
}
