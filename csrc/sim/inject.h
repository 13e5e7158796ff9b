/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Failures on purpose. GPUSHARE_SIM_FAIL, and gpushare_sim_fail() while the program runs, hold rules:
 *
 *     rules  = rule { "," rule }
 *     rule   = function [ threads ] [ ":" number [ "+" ] ] [ "@" probability ] [ "=" result ] [ "/later" | "/fatal" ]
 *     threads = "%" [ "!" ] thread
 *
 * `function` is a call's name, with or without its _v2 and _ptsz, or its beginning and '*'; `thread` is the beginning
 * of the name of the thread that calls, with '!' of the threads that are left out. Of the calls that match, counted
 * from when the rules were set, the rule takes all, or the number-th, or with '+' all from there on, each with the
 * probability if one is given. A call that is taken does nothing and returns the result: OUT_OF_MEMORY where the driver
 * may run out of it, else UNKNOWN. With /later, a call that submits work succeeds, the work is not done, and the first
 * synchronisation or query that comes to it returns the result, once. With /fatal, the context fails for good.
 */
#ifndef SIM_INJECT_H
#define SIM_INJECT_H

#include "driver.h"

/* One call that can fail; they are collected by the linker, so that a rule which matches none is refused. */
struct sim_site {
    const char *function;
};

extern bool sim_injecting;

/* What the call is to return, or CUDA_SUCCESS. */
CUresult sim_inject(const char *function);

/* The result that the operation which this thread is submitting is to have (/later), or CUDA_SUCCESS. Asked once. */
CUresult sim_inject_take_later(void);

/* Reads GPUSHARE_SIM_FAIL. False after a line on stderr. */
bool sim_inject_init(const struct sim_config *config);

#define SIM_INJECT(name)                                                                                               \
    do {                                                                                                               \
        static const struct sim_site site_ __attribute__((section("sim_sites"), used)) = {#name};                      \
        if (__builtin_expect(__atomic_load_n(&sim_injecting, __ATOMIC_RELAXED), 0))                                    \
            SIM_TRY(sim_inject(site_.function));                                                                       \
    } while (0)

/* Sets the rules; NULL or "" means none. 0, or -1 after a line on stderr, and the rules are what they were. */
__attribute__((visibility("default"))) int gpushare_sim_fail(const char *rules);

#endif
