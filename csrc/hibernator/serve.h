/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads requests from standard input, one on each line, and writes one line for each to standard output:
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
 */
#ifndef GPUSHARE_HIBERNATOR_SERVE_H
#define GPUSHARE_HIBERNATOR_SERVE_H

/* Serves until the end of standard input. Then waits some seconds at most for the calls that are still running. */
void hib_serve(void);

#endif
