/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests, one a line, from standard input, and one line for each to standard output:
 *
 *   ID driver                                  ID RESULT NAME VERSION
 *   ID state PID                               ID RESULT NAME STATE
 *   ID lock PID TIMEOUT_MS                     ID RESULT NAME
 *   ID checkpoint PID
 *   ID restore PID [OLD=NEW]                   GPUs' UUIDs, 32 hex digits each
 *   ID unlock PID
 *
 * ID is the caller's, digits. RESULT is a CUresult, NAME what the driver calls it. What is no request, but begins with
 * an ID, is answered by CUDA_ERROR_INVALID_VALUE; one too many at a time by CUDA_ERROR_NOT_READY and the word "busy".
 * Answers come as the driver does, in any order.
 */
#ifndef GPUSHARE_HIBERNATOR_SERVE_H
#define GPUSHARE_HIBERNATOR_SERVE_H

/* Serves until the end of standard input, then lets what is under way end, for some seconds at most. */
void hib_serve(void);

#endif
