/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A process's desk (segment/layout.h) has one word, which both sides change by compare-and-swap. It contains the
 * process's state and the phase of a call. The requesting process takes the desk's turn, posts a call and waits. A
 * thread of the target process takes the call, carries it out and answers with the resulting state. If either process
 * is killed, the state it leaves is one from which others can continue. If the requester is killed, the call ends by
 * itself. If the target is killed, no state remains. Only a lock that lost its requester is undone.
 *
 * The results, and the order in which calls wait for each other, are as measured with driver 580.159.04 on an NVIDIA
 * H200.
 */
#include "checkpoint.h"

#include "gate.h"
#include "inject.h"

#include "base/clock.h"
#include "checkpoint_memory.h"
#include "contexts.h"
#include "counters.h"
#include "identity.h"
#include "segment/desks.h"
#include "segment/devices.h"
#include "segment/memory.h"
#include "segment/record.h"
#include "segment/segment.h"

#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_NS 20000000 /* how often a waiting process checks whether the other one is alive */
#define DRAIN_NS 500000  /* how often a lock checks whether the work is done */

enum phase { IDLE, POSTED, TAKEN };
enum call { NONE, LOCK, CHECKPOINT, RESTORE, UNLOCK, STATE };

/* Never 0, which means that the process does not answer. */
static uint32_t word_of(CUprocessState state, enum phase phase)
{
    return ((uint32_t)state + 1) | (uint32_t)phase << 8;
}

static CUprocessState state_of(uint32_t word)
{
    return (CUprocessState)((word & 0xff) - 1);
}

static enum phase phase_of(uint32_t word)
{
    return (enum phase)(word >> 8);
}

static uint32_t look(const struct sim_desk *desk)
{
    return __atomic_load_n(&desk->word, __ATOMIC_SEQ_CST);
}

static bool change(struct sim_desk *desk, uint32_t from, uint32_t to)
{
    bool changed = __atomic_compare_exchange_n(&desk->word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (changed)
        syscall(SYS_futex, &desk->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    return changed;
}

static void wait_while(const struct sim_desk *desk, uint32_t word, uint64_t most)
{
    const struct timespec slice = {.tv_sec = (time_t)(most / UINT64_C(1000000000)),
                                   .tv_nsec = (long)(most % UINT64_C(1000000000))};
    syscall(SYS_futex, &desk->word, FUTEX_WAIT, word, most > 0 ? &slice : NULL, NULL, 0);
}

/* --- In the target process --- */

/* The requester holds the turn as long as it lives. */
static bool is_wanted(struct sim_desk *desk)
{
    if (!sim_segment_try(&desk->turn))
        return true;
    desk->call = NONE;
    pthread_mutex_unlock(&desk->turn);
    return false;
}

/* The time limit is for draining the work, and starts now. A process that was stopped until now is not late. */
static CUresult do_lock(struct sim_desk *desk)
{
    uint64_t deadline = sim_now() + desk->timeout_ms * UINT64_C(1000000);
    sim_gate_shut();
    while (!sim_gate_is_empty() || !sim_contexts_are_idle()) {
        if (desk->timeout_ms != 0 && sim_now() >= deadline)
            return CUDA_ERROR_NOT_READY;
        sim_sleep_until(sim_now() + DRAIN_NS);
    }
    return is_wanted(desk) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/*
 * Takes the time for the bytes of all devices, which are copied in parallel, for the page-locks, and the fixed time.
 */
static void move(enum sim_engine engine, uint64_t fixed_ms)
{
    uint64_t until = 0;
    for (unsigned device = 0; device < sim_segment_devices(); device++) {
        uint64_t bytes = sim_segment_own(device);
        uint64_t end = bytes == 0 ? 0 : sim_engine_use(device, engine, bytes, sim_config.bandwidth);
        until = end > until ? end : until;
    }
    sim_sleep_until(until);
    uint64_t page_locked = sim_memory_page_locked();
    __atomic_store_n(&sim_counters_now.kept_locked, page_locked, __ATOMIC_RELAXED);
    if (sim_config.checkpoint_locked_bandwidth != 0)
        sim_sleep_until(sim_now() + sim_duration(page_locked, sim_config.checkpoint_locked_bandwidth));
    sim_sleep_until(sim_now() + fixed_ms * UINT64_C(1000000));
}

static CUresult do_checkpoint(void)
{
    if (!sim_memory_is_own())
        return CUDA_ERROR_NOT_SUPPORTED;
    move(SIM_ENGINE_TO_HOST, sim_config.checkpoint_ms);
    if (!sim_memory_reach(false)) {
        sim_memory_reach(true);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    sim_segment_park(sim_config.checkpoint_left);
    return CUDA_SUCCESS;
}

/* False if the machine has no such device. */
static bool find_unit(const unsigned char uuid[16], unsigned *machine)
{
    for (*machine = 0; sim_segment_machine_unit(*machine) != NULL; ++*machine) {
        unsigned char own[16];
        sim_unit_uuid(sim_config.name, sim_segment_machine_unit(*machine), own);
        if (memcmp(own, uuid, sizeof own) == 0)
            return true;
    }
    return false;
}

static bool alike(const struct sim_unit *a, const struct sim_unit *b)
{
    return strcmp(a->model, b->model) == 0 && (a->slice < 0) == (b->slice < 0);
}

/* Where each of the machine's devices goes. The pairs must name all of them, whether the process sees them or not. */
static CUresult plan(const struct sim_desk *desk, unsigned to[SIM_MAX_DEVICES])
{
    unsigned named = 0, entered = 0;
    for (unsigned machine = 0; machine < SIM_MAX_DEVICES; machine++)
        to[machine] = machine;
    if (desk->pair_count == 0)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; i < desk->pair_count; i++) {
        unsigned from, onto;
        SIM_REQUIRE(find_unit(desk->pairs[i][0], &from) && find_unit(desk->pairs[i][1], &onto));
        SIM_REQUIRE((named >> from & 1) == 0 && (entered >> onto & 1) == 0);
        if (!alike(sim_segment_machine_unit(from), sim_segment_machine_unit(onto)))
            return CUDA_ERROR_NOT_SUPPORTED;
        named |= 1u << from;
        entered |= 1u << onto;
        to[from] = onto;
    }
    SIM_REQUIRE(sim_segment_machine_unit(desk->pair_count) == NULL);
    return CUDA_SUCCESS;
}

static CUresult do_restore(const struct sim_desk *desk, bool forgets)
{
    unsigned to[SIM_MAX_DEVICES];
    SIM_TRY(plan(desk, to));
    if (!sim_segment_unpark(to))
        return CUDA_ERROR_OUT_OF_MEMORY;
    move(SIM_ENGINE_TO_DEVICE, sim_config.restore_ms);
    if (!sim_memory_reach(true)) {
        sim_segment_park(sim_config.checkpoint_left);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (forgets)
        sim_memory_forget_reservations();
    return CUDA_SUCCESS;
}

static const struct {
    const char *name;
    CUprocessState from, to;
} calls[] = {
    [LOCK] = {"cuCheckpointProcessLock", CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
    [CHECKPOINT] = {"cuCheckpointProcessCheckpoint", CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED},
    [RESTORE] = {"cuCheckpointProcessRestore", CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED},
    [UNLOCK] = {"cuCheckpointProcessUnlock", CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
    [STATE] = {.name = "cuCheckpointProcessGetState"}, /* from any state to the same state */
};

static CUresult inject(enum call call, enum sim_effect *effect)
{
    *effect = SIM_AT_ONCE;
    return __atomic_load_n(&sim_injecting, __ATOMIC_RELAXED) ? sim_inject_anywhere(calls[call].name, effect)
                                                             : CUDA_SUCCESS;
}

static void answer(struct sim_desk *desk, CUprocessState before)
{
    enum call call = (enum call)desk->call;
    CUprocessState after = before;
    enum sim_effect effect;
    CUresult result = inject(call, &effect);
    if (result != CUDA_SUCCESS && effect == SIM_FATAL) {
        sim_contexts_fail(result);
        after = CU_PROCESS_STATE_FAILED;
    } else if (result == CUDA_SUCCESS) {
        result = call == LOCK         ? do_lock(desk)
                 : call == CHECKPOINT ? do_checkpoint()
                 : call == RESTORE    ? do_restore(desk, effect == SIM_FORGET)
                                      : CUDA_SUCCESS;
        after = result == CUDA_SUCCESS && call != STATE ? calls[call].to : before;
    }
    if (after == CU_PROCESS_STATE_RUNNING || after == CU_PROCESS_STATE_FAILED)
        sim_gate_open();
    __atomic_store_n(&desk->result, (int)result, __ATOMIC_RELAXED);
    change(desk, word_of(before, TAKEN), word_of(after, IDLE));
}

static void *serve(void *argument)
{
    struct sim_desk *desk = argument;
    prctl(PR_SET_NAME, "sim-checkpoint");
    desk->tid = (int)syscall(SYS_gettid);
    desk->call = NONE;
    change(desk, 0, word_of(CU_PROCESS_STATE_RUNNING, IDLE));
    for (uint32_t word; (word = look(desk)) != 0;) {
        if (phase_of(word) != POSTED)
            wait_while(desk, word, 0);
        else if (change(desk, word, word_of(state_of(word), TAKEN)))
            answer(desk, state_of(word));
    }
    return NULL;
}

void sim_checkpoint_serve(void)
{
    struct sim_desk *desk = sim_segment_desk();
    if (desk == NULL || sim_config.driver.major < SIM_DRIVER_CHECKPOINTS)
        return;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, desk) == 0) {
        pthread_detach(thread);
        /* When cuInit returns, the process must be able to answer. */
        while (look(desk) == 0)
            wait_while(desk, 0, LOOK_NS);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* --- In the requesting process --- */

struct target {
    struct sim_desk *desk;
    pid_t pid;
    uint64_t started;
    CUprocessState state; /* the state at the last time when no call was running */
};

static CUresult find(int pid, struct target *target)
{
    struct sim_config config;
    if (!sim_config_read(&config) || !sim_inject_init(&config))
        return CUDA_ERROR_INVALID_VALUE;
    if (config.driver.major < SIM_DRIVER_CHECKPOINTS)
        return CUDA_ERROR_NOT_SUPPORTED;
    SIM_REQUIRE(pid > 0);
    if (!sim_segment_reaches(pid))
        return CUDA_ERROR_OPERATING_SYSTEM;
    *target = (struct target){.pid = pid};
    if (sim_segment_look(&config))
        target->desk = sim_segment_desk_of(pid, &target->started);
    return target->desk != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static bool lives(const struct target *target)
{
    return look(target->desk) != 0 && sim_segment_desk_is_of(target->desk, target->pid, target->started);
}

/* Waits until no call is running, for example a call of a requester that was killed. */
static CUresult settle(struct target *target)
{
    uint32_t word;
    while (phase_of(word = look(target->desk)) != IDLE || word == 0) {
        if (!lives(target))
            return CUDA_ERROR_OPERATING_SYSTEM;
        wait_while(target->desk, word, LOOK_NS);
    }
    target->state = state_of(word);
    return lives(target) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Works however long the process is stopped. */
static CUresult post(struct target *target, enum call call)
{
    struct sim_desk *desk = target->desk;
    desk->call = call;
    if (!change(desk, word_of(target->state, IDLE), word_of(target->state, POSTED)))
        return CUDA_ERROR_OPERATING_SYSTEM;
    uint32_t word;
    while (phase_of(word = look(desk)) != IDLE) {
        if (!lives(target))
            return CUDA_ERROR_OPERATING_SYSTEM;
        wait_while(desk, word, LOOK_NS);
    }
    target->state = state_of(word);
    return word != 0 ? (CUresult)__atomic_load_n(&desk->result, __ATOMIC_RELAXED) : CUDA_ERROR_OPERATING_SYSTEM;
}

/* The caller holds the turn. */
static CUresult ask_now(struct target *target, enum call call, unsigned timeout_ms,
                        const CUcheckpointRestoreArgs *restore)
{
    struct sim_desk *desk = target->desk;
    SIM_TRY(settle(target));
    /* The requester of the lock was killed before the answer. */
    if (desk->call == LOCK && target->state == CU_PROCESS_STATE_LOCKED)
        SIM_TRY(post(target, UNLOCK));
    if (call != STATE && target->state != calls[call].from)
        return CUDA_ERROR_ILLEGAL_STATE;
    desk->timeout_ms = timeout_ms;
    desk->pair_count = restore != NULL ? restore->gpuPairsCount : 0;
    for (uint32_t i = 0; i < desk->pair_count; i++) {
        memcpy(desk->pairs[i][0], restore->gpuPairs[i].oldUuid.bytes, sizeof desk->pairs[i][0]);
        memcpy(desk->pairs[i][1], restore->gpuPairs[i].newUuid.bytes, sizeof desk->pairs[i][1]);
    }
    return post(target, call);
}

/* `state`: the resulting state, or NULL. */
static CUresult ask(int pid, enum call call, unsigned timeout_ms, const CUcheckpointRestoreArgs *restore,
                    CUprocessState *state)
{
    struct target target;
    enum sim_effect effect;
    SIM_TRY(find(pid, &target));
    SIM_TRY(inject(call, &effect));
    sim_segment_lock(&target.desk->turn);
    CUresult result = ask_now(&target, call, timeout_ms, restore);
    if (result == CUDA_SUCCESS && state != NULL)
        *state = target.state;
    target.desk->call = NONE;
    pthread_mutex_unlock(&target.desk->turn);
    return result;
}

static bool is_zero(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)bytes)[i] != 0)
            return false;
    return true;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *arguments)
{
    SIM_SITE(cuCheckpointProcessLock);
    (void)site_;
    SIM_REQUIRE(arguments == NULL ||
                (arguments->reserved0 == 0 && is_zero(arguments->reserved1, sizeof arguments->reserved1)));
    return ask(pid, LOCK, arguments != NULL ? arguments->timeoutMs : 0, NULL, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *arguments)
{
    SIM_SITE(cuCheckpointProcessCheckpoint);
    (void)site_;
    SIM_REQUIRE(arguments == NULL || is_zero(arguments->reserved, sizeof arguments->reserved));
    if (arguments != NULL && arguments->customStorageInfo_out != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return ask(pid, CHECKPOINT, 0, NULL, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *arguments)
{
    SIM_SITE(cuCheckpointProcessRestore);
    (void)site_;
    struct sim_driver driver;
    sim_config_driver(&driver);
    SIM_REQUIRE(arguments == NULL ||
                (is_zero(arguments->reserved, sizeof arguments->reserved) &&
                 arguments->gpuPairsCount <= SIM_DESK_PAIRS &&
                 (arguments->gpuPairsCount == 0 || (arguments->gpuPairs != NULL && driver.major >= SIM_DRIVER_MOVES))));
    if (arguments != NULL && arguments->customStorageInfo_out != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return ask(pid, RESTORE, 0, arguments, NULL);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *arguments)
{
    SIM_SITE(cuCheckpointProcessUnlock);
    (void)site_;
    SIM_REQUIRE(arguments == NULL || is_zero(arguments->reserved, sizeof arguments->reserved));
    return ask(pid, UNLOCK, 0, NULL, NULL);
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    SIM_SITE(cuCheckpointProcessGetState);
    (void)site_;
    SIM_REQUIRE(state != NULL);
    return ask(pid, STATE, 0, NULL, state);
}

/* Answered from the segment, even if the process is stopped. The driver's behaviour then was not measured. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    SIM_SITE(cuCheckpointProcessGetRestoreThreadId);
    struct target target;
    enum sim_effect effect;
    SIM_REQUIRE(tid != NULL);
    SIM_TRY(find(pid, &target));
    SIM_TRY(sim_inject_anywhere(site_.function, &effect));
    *tid = target.desk->tid;
    return CUDA_SUCCESS;
}
