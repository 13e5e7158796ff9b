/* SPDX-License-Identifier: BSD-3-Clause */
/* Contexts, failures, forks, and memory that another process opens. */
#include "player.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct context primary[2];
/* Once all calls fail, which of several errors a call returns is the driver's choice. */
bool failed;

void load_functions(struct self *self, struct context *context)
{
    CUcontext popped;
    if (CALL(self, cuCtxPushCurrent, context->handle) != CUDA_SUCCESS)
        return;
    if (CALL(self, cuModuleLoad, &context->module, getenv("DIFFERENTIAL_KERNELS")) == CUDA_SUCCESS) {
        CALL(self, cuModuleGetFunction, &context->mix, context->module, "mix");
        CALL(self, cuModuleGetFunction, &context->post, context->module, "post");
        CALL(self, cuModuleGetFunction, &context->fault, context->module, "fault");
        if (!real)
            CALL(self, cuModuleGetFunction, &context->decide, context->module, "decide");
    }
    CALL(self, cuCtxPopCurrent, &popped);
}

void drop_context(struct space *space, unsigned context)
{
    for (unsigned i = FIRST_OWN; i < STREAMS; i++)
        if (space->streams[i].open && space->streams[i].context == context)
            space->streams[i].open = false;
    for (unsigned i = 0; i < EVENTS; i++)
        if (space->events[i].context == context)
            space->events[i].open = false;
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &space->blocks[i];
        if (block->kind != EMPTY && block->context == context && block->kind != MAPPED) {
            space->kept += is_pool_memory(block) ? whole_pages(block->size) : 0;
            forget_block(block);
        }
        if (block->kind != EMPTY && block->last != NOTHING_PENDING)
            block->last = UNKNOWN_STREAM;
    }
    for (unsigned i = 0; i < GRAPHS; i++)
        if (space->graphs[i].context == context)
            space->graphs[i] = (struct graph){0};
    for (unsigned i = 0; i < ARRAYS; i++)
        if (space->arrays[i].context == context)
            space->arrays[i].handle = NULL;
}

/* use CONTEXT */
static void op_use(struct self *self, const unsigned long long *n)
{
    unsigned slot = (unsigned)(n[0] % CONTEXTS);
    if (self->space->contexts[slot]->handle == NULL)
        return;
    if (CALL(self, cuCtxSetCurrent, self->space->contexts[slot]->handle) == CUDA_SUCCESS) {
        self->current = (int)slot;
        self->gone = false;
    }
}

/* A new context could get the name of one that is gone, and who has that one current would be in the new one. */
static bool anybody_is_in_none(const struct self *self)
{
    for (unsigned i = 0; i < THREADS; i++)
        if (selves[i].space == self->space && selves[i].gone)
            return true;
    return false;
}

/* mkctx FLAGS */
static void op_mkctx(struct self *self, const unsigned long long *n)
{
    struct context *context = &self->space->own;
    CUcontext popped;
    if (context->handle != NULL || anybody_is_in_none(self))
        return;
    *context = (struct context){0};
    if (CREATE_CONTEXT(self, &context->handle, (unsigned)(n[0] % 4)) != CUDA_SUCCESS) {
        context->handle = NULL;
        return;
    }
    CALL(self, cuCtxPopCurrent, &popped);
    load_functions(self, context);
}

/* behind FLAGS: the same with the driver's own function, as a library does that takes it elsewhere */
static void op_behind(struct self *self, const unsigned long long *n)
{
    static CUresult (*create)(CUcontext *, unsigned, CUdevice);
    struct context *context = &self->space->own;
    CUcontext popped;
    if (context->handle != NULL || anybody_is_in_none(self))
        return;
    if (create == NULL) {
        const char *driver = getenv("GPUSHARE_DRIVER");
        create = (CUresult (*)(CUcontext *, unsigned, CUdevice))dlsym(
            dlopen(driver != NULL ? driver : "libcuda.so.1", RTLD_NOW), "cuCtxCreate_v2");
    }
    *context = (struct context){0};
    CUresult result = create(&context->handle, (unsigned)(n[0] % 4), 0);
    note_result(self, "cuCtxCreate", result);
    if (result != CUDA_SUCCESS) {
        context->handle = NULL;
        return;
    }
    CALL(self, cuCtxPopCurrent, &popped);
    load_functions(self, context);
}

/* Of all blocks of the context. */
static void close_all_elsewhere(struct self *self, unsigned context)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (self->space->blocks[i].kind != EMPTY && self->space->blocks[i].context == context)
            close_elsewhere(self, &self->space->blocks[i]);
}

/* rmctx: with all that is in it, also while it works */
static void op_rmctx(struct self *self, const unsigned long long *n)
{
    (void)n;
    struct space *space = self->space;
    if (space->own.handle == NULL || space->capture.open || failed)
        return;
    if (self->current == 1 && CALL(self, cuCtxSetCurrent, primary[0].handle) == CUDA_SUCCESS)
        self->current = 0;
    /* Whether reads that are under way would still be done depends on time. */
    synchronize_all(self);
    close_all_elsewhere(self, 1);
    if (CALL(self, cuCtxDestroy, space->own.handle) != CUDA_SUCCESS)
        return;
    drop_context(space, 1);
    space->own.handle = NULL;
    for (unsigned i = 0; i < THREADS; i++)
        selves[i].gone = selves[i].gone || (selves[i].space == space && selves[i].current == 1);
}

/* pushpop CONTEXT */
static void op_pushpop(struct self *self, const unsigned long long *n)
{
    struct context *context = self->space->contexts[n[0] % CONTEXTS];
    CUcontext current = NULL, popped = NULL;
    CUdevice device = -1;
    if (context->handle == NULL)
        return;
    if (CALL(self, cuCtxPushCurrent, context->handle) != CUDA_SUCCESS)
        return;
    if (CALL(self, cuCtxGetCurrent, &current) == CUDA_SUCCESS)
        note(self, " same=%d", current == context->handle);
    if (CALL(self, cuCtxGetDevice, &device) == CUDA_SUCCESS)
        note(self, " device=%d", device);
    if (CALL(self, cuCtxPopCurrent, &popped) == CUDA_SUCCESS)
        note(self, " same=%d", popped == context->handle);
}

/* retainprimary DEVICE: once more, and back */
static void op_retainprimary(struct self *self, const unsigned long long *n)
{
    unsigned device = (unsigned)(n[0] % device_count);
    CUcontext handle = NULL;
    unsigned flags = 0;
    int active = 0;
    if (CALL(self, cuDevicePrimaryCtxRetain, &handle, (CUdevice)device) == CUDA_SUCCESS) {
        note(self, " same=%d", handle == primary[device].handle);
        CALL(self, cuDevicePrimaryCtxRelease, (CUdevice)device);
    }
    if (CALL(self, cuDevicePrimaryCtxGetState, (CUdevice)device, &flags, &active) == CUDA_SUCCESS)
        note(self, " flags=%u active=%d", flags, active);
}

void wait_everywhere(struct self *self)
{
    struct space *own = self->space;
    for (unsigned i = 0; i < space_count; i++) {
        self->space = &all_spaces[i];
        synchronize_all(self);
    }
    self->space = own;
}

static bool anybody_captures(void)
{
    for (unsigned i = 0; i < space_count; i++)
        if (all_spaces[i].capture.open)
            return true;
    return false;
}

/* reset DEVICE: the primary context, with all that is in it, and begins again */
static void op_reset(struct self *self, const unsigned long long *n)
{
    unsigned device = (unsigned)(n[0] % device_count);
    if (anybody_captures() || failed)
        return;
    wait_everywhere(self);
    struct space *own = self->space;
    for (unsigned i = 0; i < space_count; i++) {
        self->space = &all_spaces[i];
        close_all_elsewhere(self, device == 0 ? 0 : 2);
    }
    self->space = own;
    if (CALL(self, cuDevicePrimaryCtxReset, (CUdevice)device) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < space_count; i++)
        drop_context(&all_spaces[i], device == 0 ? 0 : 2);
    /* A call in the context that was: what remains of it is dead. */
    size_t free_bytes, total;
    CALL(self, cuMemGetInfo, &free_bytes, &total);
    for (unsigned i = 0; i < 2; i++) {
        CUcontext handle = NULL;
        if (CALL(self, cuDevicePrimaryCtxRetain, &handle, (CUdevice)device) != CUDA_SUCCESS)
            break;
        primary[device].handle = handle;
    }
    load_functions(self, &primary[device]);
    if (CALL(self, cuCtxSetCurrent, primary[0].handle) == CUDA_SUCCESS)
        self->current = 0;
}

/* peers WAY: the contexts of both devices may touch each other's memory */
static void op_peers(struct self *self, const unsigned long long *n)
{
    if (device_count < 2)
        return;
    unsigned from = n[0] % 2 == 0 ? 0 : 2, to = 2 - from;
    CUcontext popped;
    int can = 0;
    if (CALL(self, cuDeviceCanAccessPeer, &can, (CUdevice)(from / 2), (CUdevice)(to / 2)) == CUDA_SUCCESS)
        note(self, " can=%d", can);
    if (CALL(self, cuCtxPushCurrent, self->space->contexts[from]->handle) != CUDA_SUCCESS)
        return;
    if (n[0] % 4 < 2)
        CALL(self, cuCtxEnablePeerAccess, self->space->contexts[to]->handle, 0);
    else
        CALL(self, cuCtxDisablePeerAccess, self->space->contexts[to]->handle);
    CALL(self, cuCtxPopCurrent, &popped);
}

/* fault STREAM: a kernel writes where nothing is; from then on nothing works */
static void op_fault(struct self *self, const unsigned long long *n)
{
    struct stream *stream = open_stream(self, n[0]);
    unsigned slot = (unsigned)(n[0] % STREAMS);
    /* A failure is the whole process's: only the strict simulated driver is like that. */
    if (stream == NULL || !strict || anybody_captures() || anybody_is_in_none(self))
        return;
    failed = true;
    wait_everywhere(self);
    CUdeviceptr nowhere = 64;
    void *arguments[] = {&nowhere};
    CUfunction function = self->space->contexts[context_of(self, slot)]->fault;
    CALL(self, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream->handle, arguments, NULL);
    CALL(self, cuStreamSynchronize, stream->handle);
}

/* In the child, to which none of the parent's memory belongs: what the driver says where all of it is freed. */
static int free_everything(void)
{
    int said = 0;
    for (unsigned i = 0; i < space_count; i++)
        for (unsigned k = 0; k < BLOCKS; k++) {
            const struct block *block = &all_spaces[i].blocks[k];
            int result = block->kind == EMPTY    ? 0
                         : block->kind == HOST   ? (int)driver_cuMemFreeHost((void *)(uintptr_t)block->at)
                         : block->kind == MAPPED ? (int)driver_cuMemRelease(block->handle)
                                                 : (int)driver_cuMemFree(block->at);
            said += result;
        }
    return said;
}

/* fork: the child cannot use the driver, and the parent does not notice it */
static void op_fork(struct self *self, const unsigned long long *n)
{
    (void)n;
    if (anybody_captures())
        return;
    int ends[2], results[4] = {-1, -1, -1, -1};
    if (pipe(ends) != 0)
        return;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr at;
        int count;
        results[0] = (int)driver_cuMemAlloc(&at, 4096);
        results[1] = (int)driver_cuDeviceGetCount(&count);
        results[2] = (int)driver_cuCtxSynchronize();
        results[3] = free_everything();
        ssize_t written = write(ends[1], results, sizeof results);
        _exit(written == sizeof results ? 0 : 1);
    }
    close(ends[1]);
    size_t have = 0;
    for (ssize_t part; have < sizeof results; have += (size_t)part) {
        part = read(ends[0], (char *)results + have, sizeof results - have);
        if (part == 0)
            break;
        part = part < 0 ? 0 : part;
    }
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0)
        ;
    note(self, " child=%d:%d:%d:%d", results[0], results[1], results[2], results[3]);
    if (status != 0)
        note(self, " status=%#x", (unsigned)status);
}

/* --- The second process --- */

enum { ASK_OPEN, ASK_READ, ASK_WRITE, ASK_CLOSE, ASK_EXPORT };

/* Bytes of what the other process shows. */
enum { SHOWN = 3 << 20 };

struct question {
    int what;
    unsigned slot;
    size_t size;
    unsigned value;
    CUipcMemHandle handle;
};

struct answer {
    int result;
    uint64_t bytes;
    CUipcMemHandle handle;
};

static int partner = -1;
static pid_t partner_process;
static pthread_mutex_t partner_lock = PTHREAD_MUTEX_INITIALIZER;

static bool exchange(int socket, void *data, size_t size, bool out)
{
    for (size_t done = 0; done < size;) {
        ssize_t part =
            out ? write(socket, (char *)data + done, size - done) : read(socket, (char *)data + done, size - done);
        if (part == 0)
            return false;
        done += part > 0 ? (size_t)part : 0;
    }
    return true;
}

static struct answer answer_to(const struct question *question)
{
    static CUdeviceptr opened[THREADS * OPENED], exported;
    struct answer answer = {0};
    CUdeviceptr *at = &opened[question->slot];
    unsigned char *bytes;
    switch (question->what) {
    case ASK_OPEN:
        answer.result = (int)driver_cuIpcOpenMemHandle(at, question->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        break;
    case ASK_READ:
        bytes = malloc(question->size + 1);
        answer.result = (int)driver_cuMemcpyDtoH(bytes, *at, question->size);
        if (answer.result == 0)
            answer.bytes = hash(bytes, question->size);
        free(bytes);
        break;
    case ASK_WRITE:
        answer.result = (int)driver_cuMemsetD8(*at, (unsigned char)question->value, question->size);
        if (answer.result == 0)
            answer.result = (int)driver_cuCtxSynchronize();
        break;
    case ASK_EXPORT:
        if (exported == 0)
            answer.result = (int)driver_cuMemAlloc(&exported, SHOWN);
        if (answer.result == 0)
            answer.result = (int)driver_cuMemsetD8(exported, (unsigned char)question->value, SHOWN);
        if (answer.result == 0)
            answer.result = (int)driver_cuCtxSynchronize();
        if (answer.result == 0)
            answer.result = (int)driver_cuIpcGetMemHandle(&answer.handle, exported);
        break;
    default:
        answer.result = (int)driver_cuIpcCloseMemHandle(*at);
    }
    return answer;
}

static void be_partner(int socket)
{
    CUcontext context;
    struct question question;
    int result = (int)driver_cuInit(0);
    if (result == 0)
        result = (int)driver_cuDevicePrimaryCtxRetain(&context, 0);
    if (result == 0)
        result = (int)driver_cuCtxSetCurrent(context);
    if (result != 0)
        exit(93);
    while (exchange(socket, &question, sizeof question, false)) {
        struct answer answer = answer_to(&question);
        exchange(socket, &answer, sizeof answer, true);
    }
    exit(0);
}

int start_partner(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        be_partner(ends[1]);
    }
    close(ends[1]);
    partner = ends[0];
    partner_process = child;
    return child < 0 ? -1 : 0;
}

static struct answer ask(struct self *self, struct question *question)
{
    struct answer answer = {.result = -1};
    question->slot += (unsigned)(self->space - all_spaces) * OPENED;
    pthread_mutex_lock(&partner_lock);
    if (exchange(partner, question, sizeof *question, true))
        exchange(partner, &answer, sizeof answer, false);
    pthread_mutex_unlock(&partner_lock);
    note_result(self, "partner", (CUresult)answer.result);
    return answer;
}

/* export BLOCK SLOT */
static void op_export(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    struct opened *opened = &self->space->opened[n[1] % OPENED];
    struct question question = {.what = ASK_OPEN, .slot = (unsigned)(n[1] % OPENED)};
    if (partner < 0 || block == NULL || (block->kind != PLAIN && block->kind != PITCHED) || opened->open ||
        !settle_block(self, block))
        return;
    if (CALL(self, cuIpcGetMemHandle, &question.handle, block->at) != CUDA_SUCCESS)
        return;
    if (ask(self, &question).result == 0)
        *opened = (struct opened){true, (unsigned)(block - self->space->blocks), block->generation, block->size};
}

/*
 * CUDA leaves it undefined what happens if memory is freed while another process has it open. An H100 does not let that
 * process open new memory at the same address (ALREADY_MAPPED); the interposer does.
 */
void close_elsewhere(struct self *self, const struct block *block)
{
    for (unsigned i = 0; i < OPENED && real; i++) {
        struct opened *opened = &self->space->opened[i];
        struct question question = {.what = ASK_CLOSE, .slot = i};
        if (!opened->open || opened->block != (unsigned)(block - self->space->blocks) ||
            opened->generation != block->generation)
            continue;
        ask(self, &question);
        opened->open = false;
    }
}

/* elsewhere SLOT WHAT LENGTH VALUE: the other process reads or writes what was exported, or closes it */
static void op_elsewhere(struct self *self, const unsigned long long *n)
{
    struct opened *opened = &self->space->opened[n[0] % OPENED];
    if (!opened->open)
        return;
    struct block *block = &self->space->blocks[opened->block];
    bool lives = block->kind != EMPTY && block->generation == opened->generation;
    struct question question = {.what = ASK_CLOSE, .slot = (unsigned)(n[0] % OPENED), .value = (unsigned)n[3]};
    if (n[1] % 3 == 2 || !lives) {
        ask(self, &question);
        opened->open = false;
        return;
    }
    if (!settle_block(self, block))
        return;
    question.size = block->defined == 0 ? 0 : n[2] % block->defined + 1;
    question.what = n[1] % 3 == 0 ? ASK_READ : ASK_WRITE;
    if (question.size == 0)
        return;
    struct answer answer = ask(self, &question);
    if (question.what == ASK_READ && answer.result == 0)
        note(self, " bytes=%016llx", (unsigned long long)answer.bytes);
}

struct opening {
    CUipcMemHandle handle;
    CUdeviceptr at;
    CUresult result;
};

static void *open_shown(void *argument)
{
    struct opening *opening = argument;
    opening->result = driver_cuCtxSetCurrent(primary[0].handle);
    if (opening->result == CUDA_SUCCESS)
        opening->result = driver_cuIpcOpenMemHandle(&opening->at, opening->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return NULL;
}

/*
 * opening VALUE: a thread opens what the other process shows, which is stopped until this one has been told what an
 * address of the host's memory is.
 */
static void op_opening(struct self *self, const unsigned long long *n)
{
    struct question question = {.what = ASK_EXPORT, .value = (unsigned)n[0]};
    struct opening opening = {0};
    unsigned type = 0;
    pthread_t opener;
    if (partner < 0)
        return;
    struct answer answer = ask(self, &question);
    if (answer.result != 0)
        return;
    opening.handle = answer.handle;
    kill(partner_process, SIGSTOP);
    bool opens = pthread_create(&opener, NULL, open_shown, &opening) == 0;
    /* It may not have come far by then, and nothing is seen. */
    usleep(20000);
    CALL(self, cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pattern);
    kill(partner_process, SIGCONT);
    if (opens)
        pthread_join(opener, NULL);
    note_result(self, "cuIpcOpenMemHandle", opening.result);
    if (!opens || opening.result != CUDA_SUCCESS)
        return;
    unsigned char *bytes = malloc(SHOWN);
    if (CALL(self, cuMemcpyDtoH, bytes, opening.at, SHOWN) == CUDA_SUCCESS)
        note(self, " bytes=%016llx", (unsigned long long)hash(bytes, SHOWN));
    free(bytes);
    CALL(self, cuIpcCloseMemHandle, opening.at);
}

const struct operation context_operations[] = {{"use", op_use, 0},
                                               {"mkctx", op_mkctx, WAITS},
                                               {"behind", op_behind, WAITS},
                                               {"rmctx", op_rmctx, WAITS | PRIVATE},
                                               {"pushpop", op_pushpop, 0},
                                               {"retainprimary", op_retainprimary, WAITS},
                                               {"reset", op_reset, WAITS | SERIAL},
                                               {"peers", op_peers, WAITS | SERIAL},
                                               {"fault", op_fault, WAITS | SERIAL},
                                               {"fork", op_fork, WAITS | SERIAL},
                                               {"export", op_export, WAITS},
                                               {"elsewhere", op_elsewhere, WAITS},
                                               {"opening", op_opening, WAITS | SERIAL},
                                               {0}};
