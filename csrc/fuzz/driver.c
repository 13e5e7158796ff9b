/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_OF(symbol) #symbol
#define DEFINE(call) __typeof__(&call) driver_##call;
CALLS(DEFINE)

CUcontext context;
CUmodule module;
CUfunction kernel;
const char *module_path;
int (*inject)(const char *);
void (*counters)(uint64_t *, size_t);
void (*cell_begin)(const char *), (*cell_end)(const char *);
int (*attached)(const char **);
const char *(*group)(void);
int64_t (*control)(const char *, char *, size_t);

void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void load_module(void)
{
    if (driver_cuModuleLoad(&module, module_path) != CUDA_SUCCESS ||
        driver_cuModuleGetFunction(&kernel, module, "mix") != CUDA_SUCCESS)
        give_up("fuzz: cannot load the module %s", module_path);
}

void find_driver(void)
{
    void *ours = dlopen("libcuda.so.1", RTLD_NOW);
    if (ours == NULL)
        give_up("fuzz: %s", dlerror());
#define RESOLVE(call)                                                                                                  \
    driver_##call = (__typeof__(driver_##call))dlsym(ours, TEXT_OF(call));                                             \
    if (driver_##call == NULL)                                                                                         \
        give_up("fuzz: the driver has no %s", TEXT_OF(call));
    CALLS(RESOLVE)
    cell_begin = (void (*)(const char *))dlsym(ours, "gpushare_cell_begin");
    cell_end = (void (*)(const char *))dlsym(ours, "gpushare_cell_end");
    attached = (int (*)(const char **))dlsym(ours, "gpushare_attached");
    group = (const char *(*)(void))dlsym(ours, "gpushare_group");
    control = (int64_t (*)(const char *, char *, size_t))dlsym(ours, "gpushare_control");
    CUresult result = driver_cuInit(0);
    if (result == CUDA_SUCCESS)
        result = driver_cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = driver_cuCtxSetCurrent(context);
    if (result != CUDA_SUCCESS)
        give_up("fuzz: cannot create a context: CUDA error %d", (int)result);
    load_module();
    const char *path = getenv("GPUSHARE_DRIVER");
    void *simulated = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (simulated != NULL) {
        inject = (int (*)(const char *))dlsym(simulated, "gpushare_sim_fail");
        counters = (void (*)(uint64_t *, size_t))dlsym(simulated, "gpushare_sim_counters");
    }
}
