/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls that exist so that programs which probe for them get a clear answer. Declared here without their parameters,
 * which are not looked at: cuda.h must not be included.
 */
enum { NOT_SUPPORTED = 801, NOT_INITIALIZED = 3 };

#define UNSUPPORTED(name)                                                                                              \
    __attribute__((visibility("default"))) int name(void);                                                             \
    int name(void)                                                                                                     \
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
