/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Injected failures. GPUSHARE_SIM_FAIL, and gpushare_sim_fail() while the program runs, contain rules:
 *
 *     rules  = rule { "," rule }
 *     rule   = function [ threads ] [ ":" number [ "+" ] ] [ "@" probability ] [ "=" result ] [ "/" effect ]
 *     effect = "later" | "fatal" | number "ms" | "hang" | "linger" | "die" | "forget"
 *     threads = "%" [ "!" ] thread
 *
 * `function` is the name of a call, with or without its _v2 and _ptsz, or a prefix followed by '*'. `thread` is the
 * prefix of a thread's name; with '!', the rule is for all other threads. Matching calls are counted from when the
 * rules were set. A rule applies to all of them, or to call `number`, or with '+' to that call and all later ones. With
 * a probability, it applies to each of these calls by chance.
 *
 * Without an effect, the call does nothing and returns the result. The default result is OUT_OF_MEMORY if the driver
 * may run out of memory in that call, and UNKNOWN otherwise. The effects are:
 *
 * - later: a call that submits work succeeds, but the work is not done. The first synchronisation or query that reaches
 *   it returns the result, once.
 * - fatal: the context fails for good.
 * - a number of milliseconds: the call continues after that time, or fails then if there is a result.
 * - hang: the call continues when the rules are set again.
 * - linger: the call is carried out at once, and returns when the rules are set again.
 * - die: the process is killed.
 * - forget: a restore after a checkpoint succeeds, but nothing can be mapped into reservations that are empty.
 */
#ifndef SIM_INJECT_H
#define SIM_INJECT_H

#include "driver.h"

/* A call that can fail. The linker collects these, so that a rule for an unknown function is refused. */
struct sim_site {
    const char *function;
};

extern bool sim_injecting;

enum sim_effect { SIM_AT_ONCE, SIM_LATER, SIM_FATAL, SIM_DELAY, SIM_HANG, SIM_LINGER, SIM_DIE, SIM_FORGET };

/* Returns the injected result of the call, or CUDA_SUCCESS. Never fails before the driver is initialised ... */
CUresult sim_inject(const char *function);

/* ... except in calls that are permitted then. `effect` is the effect of the rule that applied. */
CUresult sim_inject_anywhere(const char *function, enum sim_effect *effect);

/*
 * The injected result (/later) of the operation that this thread is submitting, or CUDA_SUCCESS. Called once for each
 * operation.
 */
CUresult sim_inject_take_later(void);

/* Reads GPUSHARE_SIM_FAIL, once. False after printing one line. */
bool sim_inject_init(const struct sim_config *config);

#define SIM_SITE(name) static const struct sim_site site_ __attribute__((section("sim_sites"), used)) = {#name}

#define SIM_INJECT(name)                                                                                               \
    do {                                                                                                               \
        SIM_SITE(name);                                                                                                \
        if (__builtin_expect(__atomic_load_n(&sim_injecting, __ATOMIC_RELAXED), 0))                                    \
            SIM_TRY(sim_inject(site_.function));                                                                       \
    } while (0)

/* Sets the rules; NULL or "" means none. Returns 0, or -1 after printing one line. Then the rules are unchanged. */
__attribute__((visibility("default"))) int gpushare_sim_fail(const char *rules);

#endif
