/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The driver under test, as the dynamic linker found it, and additional functions of the interposer and of the
 * simulated driver.
 */
#ifndef FUZZ_DRIVER_H
#define FUZZ_DRIVER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define CALLS(CALL)                                                                                                    \
    CALL(cuInit)                                                                                                       \
    CALL(cuDevicePrimaryCtxRetain)                                                                                     \
    CALL(cuDevicePrimaryCtxReset)                                                                                      \
    CALL(cuCtxSetCurrent)                                                                                              \
    CALL(cuModuleLoad)                                                                                                 \
    CALL(cuModuleGetFunction)                                                                                          \
    CALL(cuMemAlloc)                                                                                                   \
    CALL(cuMemAllocPitch)                                                                                              \
    CALL(cuMemAllocAsync)                                                                                              \
    CALL(cuMemFree)                                                                                                    \
    CALL(cuMemFreeAsync)                                                                                               \
    CALL(cuMemsetD8)                                                                                                   \
    CALL(cuMemsetD16)                                                                                                  \
    CALL(cuMemsetD32)                                                                                                  \
    CALL(cuMemsetD2D8)                                                                                                 \
    CALL(cuMemsetD8Async)                                                                                              \
    CALL(cuMemsetD16Async)                                                                                             \
    CALL(cuMemsetD32Async)                                                                                             \
    CALL(cuMemsetD2D8Async)                                                                                            \
    CALL(cuMemcpyHtoD)                                                                                                 \
    CALL(cuMemcpyDtoH)                                                                                                 \
    CALL(cuMemcpyDtoD)                                                                                                 \
    CALL(cuMemcpyHtoDAsync)                                                                                            \
    CALL(cuMemcpyDtoHAsync)                                                                                            \
    CALL(cuMemcpyDtoDAsync)                                                                                            \
    CALL(cuMemcpy2D)                                                                                                   \
    CALL(cuLaunchKernel)                                                                                               \
    CALL(cuStreamCreate)                                                                                               \
    CALL(cuStreamDestroy)                                                                                              \
    CALL(cuStreamSynchronize)                                                                                          \
    CALL(cuStreamWaitEvent)                                                                                            \
    CALL(cuStreamBeginCapture)                                                                                         \
    CALL(cuStreamEndCapture)                                                                                           \
    CALL(cuGraphInstantiateWithFlags)                                                                                  \
    CALL(cuGraphLaunch)                                                                                                \
    CALL(cuGraphExecDestroy)                                                                                           \
    CALL(cuGraphDestroy)                                                                                               \
    CALL(cuEventCreate)                                                                                                \
    CALL(cuEventRecord)                                                                                                \
    CALL(cuEventDestroy)                                                                                               \
    CALL(cuPointerGetAttribute)                                                                                        \
    CALL(cuMemGetAddressRange)                                                                                         \
    CALL(cuMemGetInfo)

#define DECLARE(call) extern __typeof__(&call) driver_##call;
CALLS(DECLARE)
#undef DECLARE

extern CUcontext context;
extern CUmodule module;
extern CUfunction kernel;
extern const char *module_path;

/* Indices of the simulated driver's counters (../sim/counters.h). */
enum { COUNTER_INJECTED = 6, COUNTER_HASHED = 16, COUNTERS };

/* NULL if the library does not have it. */
extern int (*inject)(const char *);
extern void (*counters)(uint64_t *, size_t);
extern void (*cell_begin)(const char *), (*cell_end)(const char *);
extern int (*attached)(const char **);
extern const char *(*group)(void);
extern int64_t (*control)(const char *, char *, size_t);

/* Prints one line and ends the process. */
__attribute__((format(printf, 1, 2))) void give_up(const char *format, ...);

/* Finds all of these functions, creates a context, and loads the module. */
void find_driver(void);
void load_module(void);

#endif
