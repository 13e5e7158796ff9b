/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/print.h"

#define MOST_GPUS 64

static struct {
    CUresult (*init)(unsigned flags);
    CUresult (*version)(int *version);
    CUresult (*error_name)(CUresult result, const char **name);
    CUresult (*count)(int *count);
    CUresult (*uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*state)(int pid, CUprocessState *state);
    CUresult (*lock)(int pid, CUcheckpointLockArgs *args);
    CUresult (*checkpoint)(int pid, CUcheckpointCheckpointArgs *args);
    CUresult (*restore)(int pid, CUcheckpointRestoreArgs *args);
    CUresult (*unlock)(int pid, CUcheckpointUnlockArgs *args);
    bool able; /* the driver has the last five functions */
} driver;

static struct {
    pthread_mutex_t lock;
    bool done, reported;
} initialising = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool hib_driver_open(const char *path)
{
    /* A bare name would be searched for, and the interposer has the driver's name. */
    if (path[0] != '/') {
        gs_print("--driver needs an absolute path, not %s", path);
        return false;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        gs_print("the driver cannot be loaded: %s", dlerror());
        return false;
    }
    if (dlsym(handle, "gpushare_version") != NULL) {
        gs_print("%s is the shim of gpushare, not a driver", path);
        return false;
    }
    *(void **)&driver.init = dlsym(handle, "cuInit");
    *(void **)&driver.version = dlsym(handle, "cuDriverGetVersion");
    *(void **)&driver.error_name = dlsym(handle, "cuGetErrorName");
    *(void **)&driver.count = dlsym(handle, "cuDeviceGetCount");
    *(void **)&driver.uuid = dlsym(handle, "cuDeviceGetUuid_v2");
    if (driver.init == NULL || driver.version == NULL || driver.error_name == NULL || driver.count == NULL ||
        driver.uuid == NULL) {
        gs_print("%s is not a CUDA driver", path);
        return false;
    }
    *(void **)&driver.state = dlsym(handle, "cuCheckpointProcessGetState");
    *(void **)&driver.lock = dlsym(handle, "cuCheckpointProcessLock");
    *(void **)&driver.checkpoint = dlsym(handle, "cuCheckpointProcessCheckpoint");
    *(void **)&driver.restore = dlsym(handle, "cuCheckpointProcessRestore");
    *(void **)&driver.unlock = dlsym(handle, "cuCheckpointProcessUnlock");
    driver.able = driver.state != NULL && driver.lock != NULL && driver.checkpoint != NULL && driver.restore != NULL &&
                  driver.unlock != NULL;
    return true;
}

void hib_driver_initialise(void)
{
    pthread_mutex_lock(&initialising.lock);
    if (!initialising.done) {
        CUresult result = driver.init(0);
        initialising.done = result == CUDA_SUCCESS;
        if (!initialising.done && !initialising.reported)
            gs_print("cannot initialise the driver: %s", hib_driver_name(result));
        initialising.reported = !initialising.done;
    }
    pthread_mutex_unlock(&initialising.lock);
}

CUresult hib_driver_version(int *version)
{
    CUresult result = driver.version(version);
    return result == CUDA_SUCCESS && !driver.able ? CUDA_ERROR_NOT_SUPPORTED : result;
}

CUresult hib_driver_state(pid_t pid, CUprocessState *state)
{
    return driver.able ? driver.state(pid, state) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult hib_driver_lock(pid_t pid, unsigned timeout_ms)
{
    CUcheckpointLockArgs args = {.timeoutMs = timeout_ms};
    return driver.able ? driver.lock(pid, &args) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult hib_driver_checkpoint(pid_t pid)
{
    CUcheckpointCheckpointArgs args = {0};
    return driver.able ? driver.checkpoint(pid, &args) : CUDA_ERROR_NOT_SUPPORTED;
}

static bool same(const CUuuid *one, const CUuuid *other)
{
    return memcmp(one->bytes, other->bytes, sizeof(one->bytes)) == 0;
}

/*
 * The pairs "must contain every checkpointed GPU" (cuda.h). In fact they must contain every GPU of the machine, whether
 * the process uses or sees it or not (NVIDIA/cuda-python pull request 1983; driver 580.159 refuses a single pair). So
 * the two GPUs of the pair are exchanged, and all others stay. Returns the number of pairs; 0: the driver does not list
 * the GPUs.
 */
static unsigned all_pairs(const CUcheckpointGpuPair *pair, CUcheckpointGpuPair *pairs)
{
    int count = 0;
    if (driver.count(&count) != CUDA_SUCCESS || count > MOST_GPUS)
        return 0;
    for (int i = 0; i < count; i++) {
        CUuuid *old = &pairs[i].oldUuid;
        /* Devices are numbered from 0 (cuda.h: cuDeviceGet). */
        if (driver.uuid(old, i) != CUDA_SUCCESS)
            return 0;
        pairs[i].newUuid = same(old, &pair->oldUuid) ? pair->newUuid : same(old, &pair->newUuid) ? pair->oldUuid : *old;
    }
    return (unsigned)count;
}

CUresult hib_driver_restore(pid_t pid, const CUcheckpointGpuPair *pair)
{
    if (!driver.able)
        return CUDA_ERROR_NOT_SUPPORTED;
    hib_driver_initialise();
    CUcheckpointGpuPair pairs[MOST_GPUS];
    CUcheckpointRestoreArgs args = {0};
    if (pair != NULL) {
        args.gpuPairs = pairs;
        args.gpuPairsCount = all_pairs(pair, pairs);
        if (args.gpuPairsCount == 0)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return driver.restore(pid, &args);
}

CUresult hib_driver_unlock(pid_t pid)
{
    CUcheckpointUnlockArgs args = {0};
    return driver.able ? driver.unlock(pid, &args) : CUDA_ERROR_NOT_SUPPORTED;
}

const char *hib_driver_name(CUresult result)
{
    const char *name = NULL;
    return driver.error_name(result, &name) == CUDA_SUCCESS && name != NULL ? name : "CUDA_ERROR_UNKNOWN";
}

const char *hib_state_name(CUprocessState state)
{
    switch (state) {
    case CU_PROCESS_STATE_RUNNING:
        return "running";
    case CU_PROCESS_STATE_LOCKED:
        return "locked";
    case CU_PROCESS_STATE_CHECKPOINTED:
        return "checkpointed";
    case CU_PROCESS_STATE_FAILED:
        return "failed";
    case CU_PROCESS_STATE_CHECKPOINTING:
        return "checkpointing";
    case CU_PROCESS_STATE_RESTORING:
        return "restoring";
    }
    return "unknown";
}
