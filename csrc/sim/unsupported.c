/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls that exist so that programs which probe for them get a clear answer. Declared here without their parameters,
 * which are not looked at: cuda.h must not be included. (The name is the one that driver.h gives them.)
 */
enum { NOT_SUPPORTED = 801 };

#define UNSUPPORTED(name)                                                                                              \
    int sim_##name(void);                                                                                              \
    int sim_##name(void)                                                                                               \
    {                                                                                                                  \
        return NOT_SUPPORTED;                                                                                          \
    }

/* The private tables of the runtime are not imitated. */
UNSUPPORTED(cuGetExportTable)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastBindAddr)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
UNSUPPORTED(cuImportExternalMemory)
UNSUPPORTED(cuDestroyExternalMemory)
UNSUPPORTED(cuImportExternalSemaphore)
UNSUPPORTED(cuDestroyExternalSemaphore)
UNSUPPORTED(cuExternalMemoryGetMappedBuffer)
UNSUPPORTED(cuMemMapArrayAsync)
UNSUPPORTED(cuMemMapArrayAsync_ptsz)
UNSUPPORTED(cuLinkCreate_v2)
/* Checkpoints to storage of the caller's. */
UNSUPPORTED(cuCheckpointOperationComplete)
