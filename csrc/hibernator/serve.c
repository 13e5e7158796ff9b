/* SPDX-License-Identifier: BSD-3-Clause */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/print.h"
#include "driver.h"
#include "target.h"

#define LONGEST_ID 20
#define MOST_WORDS 5
#define MOST_AT_ONCE 64
#define LAST_SECONDS 10

struct request {
    char id[LONGEST_ID + 1];
    int answers; /* descriptor for the answer, which the request owns */
    enum hib_naming naming;
    int pidfd; /* HIB_BY_PIDFD: names the process, and is owned by the request; -1: none */
    CUresult (*run)(struct request *request);
    pid_t pid;
    unsigned timeout_ms;
    bool paired;
    CUcheckpointGpuPair pair;
    char value[32];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    unsigned under_way;
} serving = {.lock = PTHREAD_MUTEX_INITIALIZER};

static CUresult run_driver(struct request *request)
{
    int version = 0;
    CUresult result = hib_driver_version(&version);
    snprintf(request->value, sizeof(request->value), "%d", version);
    return result;
}

static CUresult run_state(struct request *request)
{
    CUprocessState state;
    CUresult result = hib_driver_state(request->pid, &state);
    if (result == CUDA_SUCCESS)
        snprintf(request->value, sizeof(request->value), "%s", hib_state_name(state));
    return result;
}

static void *initialise(void *argument)
{
    hib_driver_initialise();
    return argument;
}

static bool in_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

static CUresult run_lock(struct request *request)
{
    /*
     * A checkpoint will follow, so the driver is initialised meanwhile. If the thread cannot be started, the checkpoint
     * does it.
     */
    in_thread(initialise, NULL);
    return hib_driver_lock(request->pid, request->timeout_ms);
}

static CUresult run_checkpoint(struct request *request)
{
    hib_driver_initialise();
    return hib_driver_checkpoint(request->pid);
}

static CUresult run_restore(struct request *request)
{
    return hib_driver_restore(request->pid, request->paired ? &request->pair : NULL);
}

static CUresult run_unlock(struct request *request)
{
    return hib_driver_unlock(request->pid);
}

static const struct verb {
    const char *name;
    CUresult (*run)(struct request *request);
    unsigned least, most; /* number of words after the command */
} verbs[] = {
    {"driver", run_driver, 0, 0},         {"state", run_state, 1, 1},     {"lock", run_lock, 2, 2},
    {"checkpoint", run_checkpoint, 1, 1}, {"restore", run_restore, 1, 2}, {"unlock", run_unlock, 1, 1},
};

static void answer(const struct request *request, CUresult result, const char *value)
{
    char line[HIB_LONGEST_LINE];
    int length = snprintf(line, sizeof(line), "%s %d %s%s%s\n", request->id, (int)result, hib_driver_name(result),
                          value[0] != '\0' ? " " : "", value);
    /*
     * The line is short enough that a pipe or a socket accepts it as a whole. If a socket does not accept it for a
     * while (listen.c), the connection ends, because the peer would wait for the answer.
     */
    if (write(request->answers, line, (size_t)length) < 0)
        shutdown(request->answers, SHUT_RDWR);
}

/* Reads a number that consists of digits only. */
static bool read_number(const char *word, unsigned long most, unsigned long *number)
{
    if (word[0] == '\0' || strspn(word, "0123456789") != strlen(word))
        return false;
    errno = 0;
    *number = strtoul(word, NULL, 10);
    return errno == 0 && *number <= most;
}

static bool read_uuid(const char *digits, CUuuid *uuid)
{
    if (strspn(digits, "0123456789abcdefABCDEF") < 2 * sizeof(uuid->bytes))
        return false;
    for (size_t i = 0; i < sizeof(uuid->bytes); i++) {
        char pair[3] = {digits[2 * i], digits[2 * i + 1], '\0'};
        uuid->bytes[i] = (char)strtoul(pair, NULL, 16);
    }
    return true;
}

static bool read_pair(const char *word, CUcheckpointGpuPair *pair)
{
    const size_t length = 2 * sizeof(pair->oldUuid.bytes);
    return strlen(word) == 2 * length + 1 && word[length] == '=' && read_uuid(word, &pair->oldUuid) &&
           read_uuid(word + length + 1, &pair->newUuid);
}

/* Reads the words after the ID. */
static bool read_request(char **words, unsigned count, struct request *request)
{
    const struct verb *verb = NULL;
    for (size_t i = 0; count > 0 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(words[0], verbs[i].name) == 0)
            verb = &verbs[i];
    }
    if (verb == NULL || count - 1 < verb->least || count - 1 > verb->most)
        return false;
    request->run = verb->run;
    unsigned long number = 0;
    if (request->naming == HIB_BY_PIDFD) {
        bool named = count > 1 && strcmp(words[1], "-") == 0;
        if ((request->pidfd >= 0) != named || named != (count > 1))
            return false;
    } else if (count > 1) {
        if (!read_number(words[1], INT_MAX, &number) || number == 0 || (pid_t)number == getpid())
            return false;
        request->pid = (pid_t)number;
    }
    if (count > 2 && verb->run == run_lock) {
        /* For the driver, 0 means no time limit, which is not permitted here. */
        if (!read_number(words[2], UINT_MAX, &number) || number == 0)
            return false;
        request->timeout_ms = (unsigned)number;
    } else if (count > 2) {
        request->paired = read_pair(words[2], &request->pair);
        return request->paired;
    }
    return true;
}

/* Runs a step on the process of a pidfd. */
static CUresult run_on_pidfd(struct request *request)
{
    const char *why = hib_target_find(request->pidfd, request->run == run_lock, &request->pid);
    if (why == NULL) {
        CUresult result = request->run(request);
        if (!hib_target_has_ended(request->pidfd))
            return result;
        /* Another process may have got its number before the driver used it. */
        if (result == CUDA_SUCCESS && request->run == run_lock)
            hib_driver_unlock(request->pid);
        why = HIB_TARGET_GONE;
    }
    snprintf(request->value, sizeof(request->value), "%s", why);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

static void discard(struct request *request)
{
    close(request->answers);
    if (request->pidfd >= 0)
        close(request->pidfd);
    free(request);
}

static void *serve_one(void *argument)
{
    struct request *request = argument;
    CUresult result = request->pidfd >= 0 ? run_on_pidfd(request) : request->run(request);
    answer(request, result, request->value);
    discard(request);
    pthread_mutex_lock(&serving.lock);
    serving.under_way--;
    pthread_cond_signal(&serving.fewer);
    pthread_mutex_unlock(&serving.lock);
    return NULL;
}

static bool take_place(void)
{
    pthread_mutex_lock(&serving.lock);
    bool taken = serving.under_way < MOST_AT_ONCE;
    serving.under_way += taken;
    pthread_mutex_unlock(&serving.lock);
    return taken;
}

bool hib_take_request(char *line, int answers, enum hib_naming naming, int pidfd)
{
    char *words[MOST_WORDS], *rest = NULL;
    unsigned count = 0;
    for (char *word = strtok_r(line, " ", &rest); word != NULL && count < MOST_WORDS; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    unsigned long number;
    struct request *request = calloc(1, sizeof(*request));
    int copy = request != NULL ? fcntl(answers, F_DUPFD_CLOEXEC, 0) : -1;
    bool numbered = count > 0 && strlen(words[0]) <= LONGEST_ID && read_number(words[0], ULONG_MAX, &number);
    if (!numbered || copy < 0) {
        gs_print("ignored a request: %s", numbered ? strerror(errno) : "it does not begin with a number");
        if (copy >= 0)
            close(copy);
        if (pidfd >= 0)
            close(pidfd);
        free(request);
        return false;
    }
    strcpy(request->id, words[0]);
    request->answers = copy;
    request->naming = naming;
    request->pidfd = pidfd;
    if (count == MOST_WORDS || !read_request(words + 1, count - 1, request)) {
        answer(request, CUDA_ERROR_INVALID_VALUE, "");
    } else if (!take_place()) {
        answer(request, CUDA_ERROR_NOT_READY, "busy");
    } else if (in_thread(serve_one, request)) {
        return true;
    } else {
        answer(request, CUDA_ERROR_OUT_OF_MEMORY, "");
        pthread_mutex_lock(&serving.lock);
        serving.under_way--;
        pthread_mutex_unlock(&serving.lock);
    }
    discard(request);
    return true;
}

static void read_lines(int answers)
{
    char buffer[HIB_LONGEST_LINE];
    size_t filled = 0;
    bool skipping = false; /* skipping the rest of a line that is too long */
    for (;;) {
        ssize_t more = read(STDIN_FILENO, buffer + filled, sizeof(buffer) - filled);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return;
        filled += (size_t)more;
        char *line = buffer, *end;
        while ((end = memchr(line, '\n', filled - (size_t)(line - buffer))) != NULL) {
            *end = '\0';
            if (!skipping)
                hib_take_request(line, answers, HIB_BY_NUMBER, -1);
            skipping = false;
            line = end + 1;
        }
        filled -= (size_t)(line - buffer);
        memmove(buffer, line, filled);
        if (filled == sizeof(buffer)) {
            if (!skipping)
                gs_print("invalid request: it is longer than %d bytes", HIB_LONGEST_LINE - 1);
            skipping = true;
            filled = 0;
        }
    }
}

void hib_prepare(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&serving.fewer, &monotonic);
}

void hib_let_end(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LAST_SECONDS;
    pthread_mutex_lock(&serving.lock);
    while (serving.under_way > 0 && pthread_cond_timedwait(&serving.fewer, &serving.lock, &until) != ETIMEDOUT)
        ;
    if (serving.under_way > 0)
        gs_print("the hibernator is exiting while driver calls are still running: %u", serving.under_way);
    pthread_mutex_unlock(&serving.lock);
}

void hib_serve(void)
{
    hib_prepare();
    /* Output of the driver must not be mixed with the answers. */
    int answers = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    read_lines(answers);
    hib_let_end();
}
