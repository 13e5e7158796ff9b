/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Functions that exist so that programs which probe for them get a clear answer. They are declared without their
 * parameters, which are not used, so cuda.h must not be included. The names are those of driver.h.
 */
enum { NOT_SUPPORTED = 801 };

#define UNSUPPORTED(name)                                                                                              \
    int sim_##name(void);                                                                                              \
    int sim_##name(void)                                                                                               \
    {                                                                                                                  \
        return NOT_SUPPORTED;                                                                                          \
    }

/* The private tables of the CUDA runtime are not simulated. */
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
/* Checkpoints to storage of the caller are not simulated. */
UNSUPPORTED(cuCheckpointOperationComplete)
