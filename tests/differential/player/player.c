/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The process. It reads programs from standard input, each up to a line "end", and runs each in a child of its own,
 * which initialises the driver afresh. Answers, on standard output:
 *
 *     pid NUMBER                          the child, for whoever finds that it hangs
 *     done STATUS CALLS BYTES...          how it ended; so many bytes of each thread's trace follow
 */
#include "player.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFINE_CALL(call) __typeof__(&call) driver_##call;
CALLS(DEFINE_CALL)
#undef DEFINE_CALL

struct self selves[THREADS];
bool strict;
bool alone;
bool real;
unsigned char *pattern;
unsigned device_count;
int spare_device;
struct space *all_spaces;
unsigned space_count;

static const struct operation *const tables[] = {memory_operations, data_operations,   stream_operations,
                                                 graph_operations,  node_operations,   context_operations,
                                                 query_operations,  sharing_operations};

struct program {
    struct line *lines;
    unsigned count;
    unsigned threads;
    bool lockstep, partner, signals;
    char *environment[16];
    unsigned environment_count;
};

/* What the child leaves, in memory that it shares with its parent. */
struct traces {
    uint64_t calls[THREADS];
    uint64_t used[THREADS];
    char text[THREADS][TEXT];
};

static struct traces *traces;
static struct program program;
static pthread_barrier_t meeting;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned next;
} turn = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void note(struct self *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = TEXT - self->used;
    int length = vsnprintf(self->text + self->used, room, format, arguments);
    va_end(arguments);
    if (length > 0 && (size_t)length < room)
        self->used += (size_t)length;
    traces->used[self->number] = self->used;
}

/* Operations that made no call leave nothing. */
static void take_back(struct self *self, size_t used)
{
    self->used = used;
    traces->used[self->number] = used;
}

void note_result(struct self *self, const char *call, CUresult result)
{
    self->calls++;
    traces->calls[self->number] = self->calls;
    note(self, " %s=%d", call, (int)result);
}

uint64_t hash(const unsigned char *bytes, size_t size)
{
    uint64_t value = UINT64_C(0xcbf29ce484222325);
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        value = (value ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        value ^= value >> 29;
    }
    for (; at < size; at++)
        value = (value ^ bytes[at]) * UINT64_C(0x100000001b3);
    return value;
}

/* --- Threads --- */

static void execute(struct self *self, const struct line *line)
{
    unsigned flags = line->operation->flags;
    if ((flags & SERIAL) != 0 && !alone && line->thread != THREADS)
        return;
    if ((flags & WAITS) != 0 && !may_wait(self))
        return;
    if ((flags & PRIVATE) != 0 && !alone && line->thread != THREADS)
        return;
    self->line = line;
    size_t before = self->used;
    note(self, "%u %s", line->number, line->operation->name);
    size_t begun = self->used;
    line->operation->run(self, line->n);
    if (self->used == begun)
        take_back(self, before);
    else
        note(self, "\n");
}

static void tidy(struct self *self)
{
    size_t before = self->used;
    note(self, "%u tidy", self->line != NULL ? self->line->number : 0);
    size_t begun = self->used;
    finish_capture(self);
    release_locks(self->space);
    if (self->used == begun)
        take_back(self, before);
    else
        note(self, "\n");
}

static void begin_thread(struct self *self)
{
    self->current = 0;
    note(self, "0 begin");
    CALL(self, cuCtxSetCurrent, self->space->contexts[0]->handle);
    note(self, "\n");
}

static void run_free(struct self *self)
{
    for (unsigned i = 0; i < program.count; i++) {
        const struct line *line = &program.lines[i];
        if (line->thread != THREADS) {
            if (line->thread % program.threads == self->number)
                execute(self, line);
            continue;
        }
        tidy(self);
        pthread_barrier_wait(&meeting);
        if (self->number == 0)
            execute(self, line);
        pthread_barrier_wait(&meeting);
    }
}

static unsigned performer(const struct line *line)
{
    const struct capture *capture = &all_spaces[0].capture;
    if (line->thread == THREADS)
        return capture->open ? capture->thread : 0;
    return line->thread % program.threads;
}

static void run_in_lockstep(struct self *self)
{
    for (unsigned i = 0; i < program.count; i++) {
        const struct line *line = &program.lines[i];
        pthread_mutex_lock(&turn.lock);
        while (turn.next != i)
            pthread_cond_wait(&turn.changed, &turn.lock);
        pthread_mutex_unlock(&turn.lock);
        /* Nothing runs here, so all threads see the same; each comes by in each turn. */
        bool mine = performer(line) == self->number;
        pthread_barrier_wait(&meeting);
        if (mine) {
            if (line->thread == THREADS)
                tidy(self);
            execute(self, line);
            pthread_mutex_lock(&turn.lock);
            turn.next++;
            pthread_cond_broadcast(&turn.changed);
            pthread_mutex_unlock(&turn.lock);
        }
    }
}

/* What is left is brought to an end, and all that was to be read later is looked at. */
static void end_thread(struct self *self)
{
    /* Another thread may wait for a host function that needs one of them. */
    if (!program.lockstep)
        release_locks(self->space);
    pthread_barrier_wait(&meeting);
    if (program.lockstep && all_spaces[0].capture.open && all_spaces[0].capture.thread == self->number)
        tidy(self);
    if (!program.lockstep)
        tidy(self);
    pthread_barrier_wait(&meeting);
    if (program.lockstep && self->number == 0)
        tidy(self);
    pthread_barrier_wait(&meeting);
    struct space *space = self->space;
    if (program.lockstep && self->number != 0)
        return;
    note(self, "%u end", program.count + 1);
    synchronize_all(self);
    note(self, "\n");
    for (unsigned i = 0; i < space->later_count; i++)
        note(self, "%u later bytes=%016llx\n", space->later[i].line,
             (unsigned long long)hash(space->later[i].bytes, space->later[i].size));
    for (unsigned i = 0; i < STREAMS; i++)
        if (space->streams[i].chain != NULL && *space->streams[i].chain != 0)
            note(self, "%u stream%u chain=%016llx\n", program.count + 1, i,
                 (unsigned long long)*space->streams[i].chain);
    for (unsigned i = 0; i < space->chain_count; i++)
        note(self, "%u capture%u chain=%016llx\n", program.count + 1, i, (unsigned long long)space->chains[i]);
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &space->blocks[i];
        if (block->kind == EMPTY || block->defined == 0 || (block->kind == MAPPED && !block->has_access))
            continue;
        unsigned char *bytes = malloc(block->defined);
        note(self, "%u block%u", program.count + 1, i);
        if (CALL(self, cuMemcpyDtoH, bytes, block->at, block->defined) == CUDA_SUCCESS)
            note(self, " bytes=%016llx", (unsigned long long)hash(bytes, block->defined));
        note(self, "\n");
        free(bytes);
    }
}

static void *run_thread(void *argument)
{
    struct self *self = argument;
    begin_thread(self);
    pthread_barrier_wait(&meeting);
    if (program.lockstep)
        run_in_lockstep(self);
    else
        run_free(self);
    end_thread(self);
    return NULL;
}

static void ignore_signal(int number)
{
    (void)number;
}

/* Says where the thread is; whoever finds that the program hangs sends this to each. */
static void say_stack(int number)
{
    (void)number;
    void *frames[48];
    char text[48];
    int length = snprintf(text, sizeof text, "thread %d:\n", (int)gettid());
    if (write(STDERR_FILENO, text, (size_t)length) == length)
        backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
}

static pthread_t threads[THREADS];
static bool over;

/* Interrupts calls of the program's threads again and again; no call may show that. */
static void *send_signals(void *unused)
{
    (void)unused;
    for (unsigned i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++) {
        pthread_kill(threads[i % program.threads], SIGUSR1);
        usleep(700);
    }
    return NULL;
}

static void run_child(void)
{
    for (unsigned i = 0; i < program.environment_count; i++)
        putenv(program.environment[i]);
    const char *asked = getenv("GPUSHARE_SIM_STRICT");
    strict = asked != NULL && strcmp(asked, "1") == 0;
    real = getenv("DIFFERENTIAL_REAL") != NULL;
    struct sigaction action = {.sa_handler = ignore_signal}, stack = {.sa_handler = say_stack};
    sigaction(SIGUSR1, &action, NULL);
    /* The first time, it loads a library. */
    backtrace(&(void *){NULL}, 1);
    sigaction(SIGUSR2, &stack, NULL);
    if (program.partner && start_partner() != 0)
        _exit(90);
    alone = program.lockstep || program.threads == 1;
    space_count = program.lockstep ? 1 : program.threads;
    all_spaces = calloc(space_count, sizeof *all_spaces);
    for (unsigned i = 0; i < program.threads; i++)
        selves[i] = (struct self){
            .number = i, .space = &all_spaces[program.lockstep ? 0 : i], .text = traces->text[i], .current = -1};
    struct self *first = &selves[0];
    note(first, "0 start");
    int count = 0;
    if (CALL(first, cuInit, 0) != CUDA_SUCCESS || CALL(first, cuDeviceGetCount, &count) != CUDA_SUCCESS)
        _exit(91);
    device_count = count > 2 ? 2 : (unsigned)count;
    spare_device = count > 2 ? 2 : -1;
    find_scheduler();
    for (unsigned i = 0; i < device_count; i++) {
        primary[i].device = i;
        primary[i].primary = true;
        if (CALL(first, cuDevicePrimaryCtxRetain, &primary[i].handle, (CUdevice)i) != CUDA_SUCCESS)
            _exit(92);
        load_functions(first, &primary[i]);
    }
    note(first, "\n");
    for (unsigned i = 0; i < space_count; i++) {
        struct space *space = &all_spaces[i];
        space->contexts[0] = &primary[0];
        space->contexts[1] = &space->own;
        space->contexts[2] = &primary[1];
        space->streams[0] = (struct stream){.open = true, .handle = CU_STREAM_LEGACY};
        space->streams[1] = (struct stream){.open = true, .handle = CU_STREAM_PER_THREAD};
        for (unsigned k = 0; k < LOCKS; k++)
            sem_init(&space->locks[k], 0, 1);
    }
    pthread_barrier_init(&meeting, NULL, program.threads);
    for (unsigned i = 0; i < program.threads; i++)
        pthread_create(&threads[i], NULL, run_thread, &selves[i]);
    pthread_t sender;
    if (program.signals)
        pthread_create(&sender, NULL, send_signals, NULL);
    for (unsigned i = 0; i < program.threads; i++) {
        if (program.signals && i == 0) {
            /* A thread that has ended must not be sent a signal. */
            pthread_join(threads[0], NULL);
            __atomic_store_n(&over, true, __ATOMIC_RELAXED);
            pthread_join(sender, NULL);
            continue;
        }
        pthread_join(threads[i], NULL);
    }
    exit(0);
}

/* --- Programs --- */

static const struct operation *find_operation(const char *name)
{
    for (unsigned i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const struct operation *operation = tables[i]; operation->name != NULL; operation++)
            if (strcmp(operation->name, name) == 0)
                return operation;
    return NULL;
}

static void read_setting(const char *text)
{
    unsigned value;
    if (strchr(text, '=') != NULL && program.environment_count < 16)
        program.environment[program.environment_count++] = strdup(text);
    else if (sscanf(text, "threads %u", &value) == 1)
        program.threads = value > THREADS ? THREADS : value < 1 ? 1 : value;
    else if (strcmp(text, "lockstep") == 0)
        program.lockstep = true;
    else if (strcmp(text, "partner") == 0)
        program.partner = true;
    else if (strcmp(text, "signals") == 0)
        program.signals = true;
}

static void read_line(char *text, unsigned number)
{
    char name[24] = "", who = '0';
    int used = 0;
    if (sscanf(text, " %c %23s%n", &who, name, &used) != 2)
        return;
    struct line line = {.number = number, .thread = who == '*' ? THREADS : (unsigned)(who - '0') % THREADS};
    line.operation = find_operation(name);
    if (line.operation == NULL) {
        fprintf(stderr, "no such operation: %s\n", name);
        exit(2);
    }
    char *at = text + used;
    for (unsigned i = 0; i < NUMBERS; i++)
        line.n[i] = strtoull(at, &at, 10);
    program.lines = realloc(program.lines, (program.count + 1) * sizeof *program.lines);
    program.lines[program.count++] = line;
}

static bool read_program(void)
{
    char text[256];
    program.count = 0;
    program.threads = 1;
    program.lockstep = program.partner = program.signals = false;
    for (unsigned i = 0; i < program.environment_count; i++)
        free(program.environment[i]);
    program.environment_count = 0;
    for (unsigned number = 1; fgets(text, sizeof text, stdin) != NULL; number++) {
        text[strcspn(text, "\n")] = '\0';
        if (strcmp(text, "end") == 0)
            return true;
        if (text[0] == '!')
            read_setting(text + 2);
        else if (text[0] != '#' && text[0] != '\0')
            read_line(text, number);
    }
    return false;
}

static void run_program(void)
{
    memset(traces->calls, 0, sizeof traces->calls);
    memset(traces->used, 0, sizeof traces->used);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        run_child();
    }
    printf("pid %d\n", (int)child);
    fflush(stdout);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    uint64_t calls = 0;
    for (unsigned i = 0; i < THREADS; i++)
        calls += traces->calls[i];
    printf("done %d %llu", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), (unsigned long long)calls);
    for (unsigned i = 0; i < THREADS; i++)
        printf(" %llu", (unsigned long long)traces->used[i]);
    printf("\n");
    for (unsigned i = 0; i < THREADS; i++)
        fwrite(traces->text[i], 1, traces->used[i], stdout);
    fflush(stdout);
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
#define TEXT_OF(symbol) #symbol
#define FIND_CALL(call)                                                                                                \
    driver_##call = (__typeof__(driver_##call))dlsym(driver, TEXT_OF(call));                                           \
    if (driver_##call == NULL) {                                                                                       \
        fprintf(stderr, "%s is not there\n", TEXT_OF(call));                                                           \
        return 2;                                                                                                      \
    }
    CALLS(FIND_CALL)
    pattern = malloc(PATTERN);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < PATTERN; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pattern[i] = (unsigned char)state;
    }
    traces = mmap(NULL, sizeof *traces, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (traces == MAP_FAILED)
        return 2;
    printf("ready\n");
    fflush(stdout);
    while (read_program())
        run_program();
    return 0;
}
