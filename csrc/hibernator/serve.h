/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Serves requests, one on each line, and answers each with one line:
 *
 *   ID driver                                  ID RESULT NAME VERSION
 *   ID state PID                               ID RESULT NAME STATE
 *   ID lock PID TIMEOUT_MS                     ID RESULT NAME
 *   ID checkpoint PID
 *   ID restore PID [OLD=NEW]                   GPUs' UUIDs, 32 hex digits each
 *   ID unlock PID
 *
 * ID is a number that the caller chooses. RESULT is a CUresult, and NAME the driver's name for it. The answer to an
 * invalid line that begins with an ID is CUDA_ERROR_INVALID_VALUE. If too many requests are running, the answer is
 * CUDA_ERROR_NOT_READY with the word "busy". Answers are written as the driver finishes, in any order.
 *
 * Over a socket (listen.h), PID is "-" and a pidfd comes with the message. If the process cannot be used, the answer is
 * CUDA_ERROR_OPERATING_SYSTEM with a word of target.h.
 */
#ifndef GPUSHARE_HIBERNATOR_SERVE_H
#define GPUSHARE_HIBERNATOR_SERVE_H

#include <stdbool.h>

#define HIB_LONGEST_LINE 256

/* Serves until the end of standard input. Then waits some seconds at most for the calls that are still running. */
void hib_serve(void);

/* The parts of hib_serve. Must be called first. */
void hib_prepare(void);

enum hib_naming { HIB_BY_NUMBER, HIB_BY_PIDFD };

/*
 * Answers the request of a line, which is changed, in another thread. The pidfd belongs to the request from then on;
 * -1: there is none. Returns false if there will be no answer.
 */
bool hib_take_request(char *line, int answers, enum hib_naming naming, int pidfd);

/* Waits some seconds at most for the calls that are still running. */
void hib_let_end(void);

#endif
