/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the fuzzer's programs against the driver, and against a simple model: a host copy of every block, which the
 * operations change in the same way. Bytes that are read from the device are compared with the model.
 *
 * Programs are read from standard input, one operation on each line, and end with "end". The answer is one line:
 *
 *     ok OPERATIONS REFUSED BYTES COMPARED INJECTED TOUCHED HASHED
 *     failed LINE what was wrong
 *
 * An operation is "THREAD NAME NUMBER...": its thread, 0 to 3, and the arguments that the comment of its function
 * describes. All threads start together. Each has its own blocks, streams and graphs, so the model needs no lock, and
 * operations on a block happen in the order of the lines. Events order operations on a block in several streams. An
 * operation on a block that does not exist does nothing, so a program is still valid after lines were removed.
 *
 * An operation that the driver refuses must have no effect. Accepted refusals are OUT_OF_MEMORY and a cancelled wait at
 * any time, and other errors while failures are injected.
 *
 * It is a library that a Python process loads, because a library can be built for old systems where a program cannot.
 */
#include "driver.h"
#include "injection.h"
#include "operations.h"
#include "steps.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned arrived;

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    if (driver_cuCtxSetCurrent(context) != CUDA_SUCCESS)
        give_up("fuzz: a thread has no context");
    for (unsigned i = 0; i < SLOTS; i++)
        thread->blocks[i].last = -1;
    make_streams(thread);
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < concurrent)
        usleep(20);
    for (unsigned i = 0; i < thread->count && thread->problem_line == 0; i++)
        if (thread->operations[i].thread == thread->number)
            run_operation(thread, &thread->operations[i]);
    thread->current = NULL;
    if (thread->problem_line == 0)
        finish(thread);
    return NULL;
}

/* False once a difference was found: after that, the contents of memory mean nothing. */
static bool run_program(struct operation *operations, unsigned count)
{
    static struct thread threads[THREADS];
    uint64_t done = 0, refused = 0, bytes = 0, compared = 0, touched = 0, hashed = 0, figures[COUNTERS] = {0};
    const struct thread *failed = NULL;
    bool used[THREADS] = {true};
    memset(threads, 0, sizeof(threads));
    for (unsigned i = 0; i < count; i++)
        used[operations[i].thread] = true;
    concurrent = 0;
    for (unsigned i = 0; i < THREADS; i++)
        concurrent += used[i];
    arrived = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i].number = i;
        threads[i].operations = operations;
        threads[i].count = count;
        if (used[i] && pthread_create(&threads[i].self, NULL, run_thread, &threads[i]) != 0)
            give_up("fuzz: cannot start a thread");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        if (!used[i])
            continue;
        pthread_join(threads[i].self, NULL);
        done += threads[i].done;
        refused += threads[i].refused;
        bytes += threads[i].bytes;
        compared += threads[i].compared;
        touched += threads[i].touched;
        hashed += threads[i].hashed;
        if (threads[i].problem_line != 0 && failed == NULL)
            failed = &threads[i];
    }
    if (counters != NULL)
        counters(figures, sizeof(figures));
    if (failed != NULL)
        printf("failed %d %s\n", (int)failed->problem_line, failed->problem);
    else
        printf("ok %llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)done, (unsigned long long)refused,
               (unsigned long long)bytes, (unsigned long long)compared, (unsigned long long)figures[COUNTER_INJECTED],
               (unsigned long long)touched, (unsigned long long)hashed);
    return failed == NULL;
}

static bool read_operation(const char *line, unsigned number, struct operation *operation)
{
    int used = 0;
    memset(operation, 0, sizeof(*operation));
    operation->line = number;
    if (sscanf(line, "%u %11s %n", &operation->thread, operation->name, &used) < 2 || operation->thread >= THREADS)
        return false;
    line += used;
    for (unsigned i = 0; i < 7 && sscanf(line, "%llu %n", &operation->n[i], &used) == 1; i++)
        line += used;
    snprintf(operation->text, sizeof(operation->text), "%s", line);
    operation->text[strcspn(operation->text, "\n")] = '\0';
    return true;
}

__attribute__((visibility("default"))) int gpushare_fuzz(const char *kernels)
{
    char line[256];
    unsigned count = 0, room = 0;
    struct operation *operations = NULL;
    module_path = kernels;
    setvbuf(stdout, NULL, _IOLBF, 0);
    find_driver();
    start_injections();
    make_pattern();
    printf("ready\n");
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (strcmp(line, "end\n") == 0) {
            if (!run_program(operations, count))
                _exit(3);
            count = 0;
            continue;
        }
        if (count == room) {
            room = room * 2 + 256;
            operations = realloc(operations, room * sizeof(*operations));
            if (operations == NULL)
                give_up("fuzz: out of host memory for the program");
        }
        if (!read_operation(line, count + 1, &operations[count]))
            give_up("fuzz: line %u is not an operation: %s", count + 1, line);
        count++;
    }
    free(operations);
    return 0;
}
