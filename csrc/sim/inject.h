/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Failures on purpose. GPUSHARE_SIM_FAIL, and gpushare_sim_fail() while the program runs, hold rules:
 *
 *     rules  = rule { "," rule }
 *     rule   = function [ threads ] [ ":" number [ "+" ] ] [ "@" probability ] [ "=" result ] [ "/" effect ]
 *     effect = "later" | "fatal" | number "ms" | "hang" | "linger" | "die" | "forget"
 *     threads = "%" [ "!" ] thread
 *
 * `function` is a call's name, with or without its _v2 and _ptsz, or its beginning and '*'; `thread` is the beginning
 * of the name of the thread that calls, with '!' of the threads that are left out. Of the calls that match, counted
 * from when the rules were set, the rule takes all, or the number-th, or with '+' all from there on, each with the
 * probability if one is given. A call that is taken does nothing and returns the result: OUT_OF_MEMORY where the driver
 * may run out of it, else UNKNOWN. With /later, a call that submits work succeeds, the work is not done, and the first
 * synchronisation or query that comes to it returns the result, once. With /fatal, the context fails for good. With a
 * number of milliseconds, the call goes on after that (or fails, if there is a result); with /hang, when the rules are
 * set anew; with /linger, the call is carried out at once and returns when the rules are set anew; with /die, the
 * process is killed. With /forget, a restore after a checkpoint goes well, and leaves
 * reservations that nothing is mapped in such that nothing can be.
 */
#ifndef SIM_INJECT_H
#define SIM_INJECT_H

#include "driver.h"

/* One call that can fail; they are collected by the linker, so that a rule which matches none is refused. */
struct sim_site {
    const char *function;
};

extern bool sim_injecting;

enum sim_effect { SIM_AT_ONCE, SIM_LATER, SIM_FATAL, SIM_DELAY, SIM_HANG, SIM_LINGER, SIM_DIE, SIM_FORGET };

/* What the call is to return, or CUDA_SUCCESS. Nothing fails where the driver is not initialised ... */
CUresult sim_inject(const char *function);

/* ... but what may be called there all the same; `effect` is that of the rule that took the call. */
CUresult sim_inject_anywhere(const char *function, enum sim_effect *effect);

/* The result that the operation which this thread is submitting is to have (/later), or CUDA_SUCCESS. Asked once. */
CUresult sim_inject_take_later(void);

/* Reads GPUSHARE_SIM_FAIL, once. False after a line on stderr. */
bool sim_inject_init(const struct sim_config *config);

#define SIM_SITE(name) static const struct sim_site site_ __attribute__((section("sim_sites"), used)) = {#name}

#define SIM_INJECT(name)                                                                                               \
    do {                                                                                                               \
        SIM_SITE(name);                                                                                                \
        if (__builtin_expect(__atomic_load_n(&sim_injecting, __ATOMIC_RELAXED), 0))                                    \
            SIM_TRY(sim_inject(site_.function));                                                                       \
    } while (0)

/* Sets the rules; NULL or "" means none. 0, or -1 after a line on stderr, and the rules are what they were. */
__attribute__((visibility("default"))) int gpushare_sim_fail(const char *rules);

#endif
