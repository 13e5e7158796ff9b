/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Executes one random program of driver calls and writes down what every call returned.
 *
 * A program is text, one operation a line: "THREAD OPERATION NUMBER...". Threads are 0 to 3, or '*' for an operation
 * that one thread performs while all others wait. Operations name slots. An operation on a slot that is empty, or one
 * that could make the result depend on timing, does nothing, so a program from which lines were taken is a program too.
 *
 * Two runs of a program must give equal traces. These rules make that so:
 * - Each thread has slots of its own, unless the program runs in lockstep: then all share one set, and the lines are
 *   executed in their order, each by its own thread.
 * - Work on a block in one stream begins after work on it in another: the player adds the event or the wait.
 * - Bytes are only read if they were written before. Addresses are written down as offsets in their block.
 * - While a lock is held that a host function needs, only calls are made that do not wait.
 */
#ifndef GPUSHARE_DIFFERENTIAL_PLAYER_H
#define GPUSHARE_DIFFERENTIAL_PLAYER_H

#include <cuda.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CALLS(CALL)                                                                                                    \
    CALL(cuInit)                                                                                                       \
    CALL(cuDriverGetVersion)                                                                                           \
    CALL(cuDeviceGetCount)                                                                                             \
    CALL(cuDeviceTotalMem)                                                                                             \
    CALL(cuDeviceGetUuid)                                                                                              \
    CALL(cuDeviceGetAttribute)                                                                                         \
    CALL(cuDeviceCanAccessPeer)                                                                                        \
    CALL(cuDeviceGetDefaultMemPool)                                                                                    \
    CALL(cuDeviceGetMemPool)                                                                                           \
    CALL(cuDevicePrimaryCtxRetain)                                                                                     \
    CALL(cuDevicePrimaryCtxRelease)                                                                                    \
    CALL(cuDevicePrimaryCtxReset)                                                                                      \
    CALL(cuDevicePrimaryCtxGetState)                                                                                   \
    CALL(cuCtxCreate)                                                                                                  \
    CALL(cuCtxDestroy)                                                                                                 \
    CALL(cuCtxSetCurrent)                                                                                              \
    CALL(cuCtxGetCurrent)                                                                                              \
    CALL(cuCtxPushCurrent)                                                                                             \
    CALL(cuCtxPopCurrent)                                                                                              \
    CALL(cuCtxGetDevice)                                                                                               \
    CALL(cuCtxGetFlags)                                                                                                \
    CALL(cuCtxGetLimit)                                                                                                \
    CALL(cuCtxGetStreamPriorityRange)                                                                                  \
    CALL(cuCtxSynchronize)                                                                                             \
    CALL(cuCtxEnablePeerAccess)                                                                                        \
    CALL(cuCtxDisablePeerAccess)                                                                                       \
    CALL(cuModuleLoad)                                                                                                 \
    CALL(cuModuleUnload)                                                                                               \
    CALL(cuModuleGetFunction)                                                                                          \
    CALL(cuFuncGetAttribute)                                                                                           \
    CALL(cuLaunchKernel)                                                                                               \
    CALL(cuLaunchHostFunc)                                                                                             \
    CALL(cuMemAlloc)                                                                                                   \
    CALL(cuMemAllocPitch)                                                                                              \
    CALL(cuMemAllocAsync)                                                                                              \
    CALL(cuMemAllocFromPoolAsync)                                                                                      \
    CALL(cuMemHostAlloc)                                                                                               \
    CALL(cuMemHostGetDevicePointer)                                                                                    \
    CALL(cuMemHostGetFlags)                                                                                            \
    CALL(cuMemFree)                                                                                                    \
    CALL(cuMemFreeAsync)                                                                                               \
    CALL(cuMemFreeHost)                                                                                                \
    CALL(cuMemGetInfo)                                                                                                 \
    CALL(cuMemGetAddressRange)                                                                                         \
    CALL(cuPointerGetAttribute)                                                                                        \
    CALL(cuMemsetD8)                                                                                                   \
    CALL(cuMemsetD8Async)                                                                                              \
    CALL(cuMemsetD16Async)                                                                                             \
    CALL(cuMemsetD32Async)                                                                                             \
    CALL(cuMemcpyHtoD)                                                                                                 \
    CALL(cuMemcpyDtoH)                                                                                                 \
    CALL(cuMemcpyDtoD)                                                                                                 \
    CALL(cuMemcpyHtoDAsync)                                                                                            \
    CALL(cuMemcpyDtoHAsync)                                                                                            \
    CALL(cuMemcpyDtoDAsync)                                                                                            \
    CALL(cuMemcpy)                                                                                                     \
    CALL(cuMemcpy2D)                                                                                                   \
    CALL(cuMemcpyPeerAsync)                                                                                            \
    CALL(cuMemPoolCreate)                                                                                              \
    CALL(cuMemPoolDestroy)                                                                                             \
    CALL(cuMemPoolTrimTo)                                                                                              \
    CALL(cuMemPoolGetAttribute)                                                                                        \
    CALL(cuMemPoolSetAttribute)                                                                                        \
    CALL(cuMemAddressReserve)                                                                                          \
    CALL(cuMemAddressFree)                                                                                             \
    CALL(cuMemCreate)                                                                                                  \
    CALL(cuMemRelease)                                                                                                 \
    CALL(cuMemMap)                                                                                                     \
    CALL(cuMemUnmap)                                                                                                   \
    CALL(cuMemSetAccess)                                                                                               \
    CALL(cuMemGetAccess)                                                                                               \
    CALL(cuMemRetainAllocationHandle)                                                                                  \
    CALL(cuMemGetAllocationPropertiesFromHandle)                                                                       \
    CALL(cuMemGetAllocationGranularity)                                                                                \
    CALL(cuArrayCreate)                                                                                                \
    CALL(cuArrayDestroy)                                                                                               \
    CALL(cuArrayGetDescriptor)                                                                                         \
    CALL(cuMemcpyHtoA)                                                                                                 \
    CALL(cuMemcpyAtoH)                                                                                                 \
    CALL(cuMemcpyAtoD)                                                                                                 \
    CALL(cuMemcpyDtoA)                                                                                                 \
    CALL(cuStreamCreate)                                                                                               \
    CALL(cuStreamCreateWithPriority)                                                                                   \
    CALL(cuStreamDestroy)                                                                                              \
    CALL(cuStreamSynchronize)                                                                                          \
    CALL(cuStreamQuery)                                                                                                \
    CALL(cuStreamWaitValue32)                                                                                          \
    CALL(cuStreamWriteValue32)                                                                                         \
    CALL(cuStreamBatchMemOp)                                                                                           \
    CALL(cuStreamWaitEvent)                                                                                            \
    CALL(cuStreamGetFlags)                                                                                             \
    CALL(cuStreamGetPriority)                                                                                          \
    CALL(cuStreamGetCtx)                                                                                               \
    CALL(cuStreamBeginCapture)                                                                                         \
    CALL(cuStreamEndCapture)                                                                                           \
    CALL(cuStreamIsCapturing)                                                                                          \
    CALL(cuThreadExchangeStreamCaptureMode)                                                                            \
    CALL(cuGraphCreate)                                                                                                \
    CALL(cuGraphInstantiateWithFlags)                                                                                  \
    CALL(cuGraphLaunch)                                                                                                \
    CALL(cuGraphUpload)                                                                                                \
    CALL(cuGraphExecDestroy)                                                                                           \
    CALL(cuGraphDestroy)                                                                                               \
    CALL(cuGraphClone)                                                                                                 \
    CALL(cuGraphGetNodes)                                                                                              \
    CALL(cuGraphGetEdges)                                                                                              \
    CALL(cuGraphNodeGetType)                                                                                           \
    CALL(cuGraphAddMemsetNode)                                                                                         \
    CALL(cuGraphMemsetNodeGetParams)                                                                                   \
    CALL(cuGraphAddNode)                                                                                               \
    CALL(cuGraphAddKernelNode)                                                                                         \
    CALL(cuGraphAddEventRecordNode)                                                                                    \
    CALL(cuGraphAddEventWaitNode)                                                                                      \
    CALL(cuGraphEventRecordNodeGetEvent)                                                                               \
    CALL(cuGraphEventRecordNodeSetEvent)                                                                               \
    CALL(cuGraphEventWaitNodeGetEvent)                                                                                 \
    CALL(cuGraphEventWaitNodeSetEvent)                                                                                 \
    CALL(cuGraphExecEventRecordNodeSetEvent)                                                                           \
    CALL(cuGraphExecEventWaitNodeSetEvent)                                                                             \
    CALL(cuGraphAddBatchMemOpNode)                                                                                     \
    CALL(cuGraphBatchMemOpNodeGetParams)                                                                               \
    CALL(cuGraphExecBatchMemOpNodeSetParams)                                                                           \
    CALL(cuGraphConditionalHandleCreate)                                                                               \
    CALL(cuGraphExecUpdate)                                                                                            \
    CALL(cuDeviceGraphMemTrim)                                                                                         \
    CALL(cuEventCreate)                                                                                                \
    CALL(cuEventRecord)                                                                                                \
    CALL(cuEventRecordWithFlags)                                                                                       \
    CALL(cuEventSynchronize)                                                                                           \
    CALL(cuEventQuery)                                                                                                 \
    CALL(cuEventElapsedTime)                                                                                           \
    CALL(cuEventDestroy)                                                                                               \
    CALL(cuIpcGetMemHandle)                                                                                            \
    CALL(cuIpcOpenMemHandle)                                                                                           \
    CALL(cuIpcCloseMemHandle)

#define DECLARE_CALL(call) extern __typeof__(&call) driver_##call;
CALLS(DECLARE_CALL)
#undef DECLARE_CALL

enum {
    THREADS = 4,
    CONTEXTS = 3, /* the first device's primary context, one made by cuCtxCreate, the second device's primary one */
    STREAMS = 6,  /* the first two are the legacy and the per-thread default stream */
    FIRST_OWN = 2,
    EVENTS = 5,
    BLOCKS = 12,
    GRAPHS = 3,
    POOLS = 2,
    LOCKS = 2,
    ARRAYS = 2,
    OPENED = 3,
    CHAINS = 64,
    LATER = 48, /* reads whose bytes are looked at in the end */
    NUMBERS = 8,
    LARGEST = 6 << 20,
    PATTERN = LARGEST + 4096
};

/* Whose work on a block was last: a stream's slot, or one of these. */
enum { NOTHING_PENDING = -1, UNKNOWN_STREAM = -2 };

enum block_kind { EMPTY, PLAIN, PITCHED, ASYNC, POOLED, HOST, MAPPED };

struct line {
    unsigned number;
    unsigned thread; /* THREADS: all */
    const struct operation *operation;
    unsigned long long n[NUMBERS];
};

struct context {
    CUcontext handle;
    unsigned device;
    bool primary, peers;
    CUmodule module;
    CUfunction mix, post, fault, decide; /* the last one of the simulated driver only */
};

struct stream {
    bool open;
    CUstream handle;
    unsigned context;
    CUevent edge;    /* of the player, to order work on blocks */
    uint64_t *chain; /* what its host functions did */
};

struct event {
    bool open, recorded, captured;
    CUevent handle;
    unsigned context, life;
};

struct block {
    enum block_kind kind;
    CUdeviceptr at;
    size_t size;
    size_t defined; /* so many bytes from the first on have been written */
    unsigned context, generation, pool;
    int last;
    unsigned last_thread, last_context; /* of a default stream's work */
    int captured_by;                    /* the stream of the open capture that used it last, or NOTHING_PENDING */
    /* Of MAPPED blocks. */
    CUmemGenericAllocationHandle handle;
    size_t bytes;
    bool has_handle, is_mapped, has_access;
};

struct graph {
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode tail; /* the last node of a graph that is made node by node, else NULL */
    unsigned context;
    bool uses[BLOCKS];
    unsigned generations[BLOCKS];
    bool stale; /* uses what is not there any more */
    bool records[EVENTS];
    unsigned event_lives[EVENTS]; /* of those that nodes are about, or 0 */
    uint64_t *chain;              /* what its host functions did */
    bool calls, launched;         /* it has host functions; it was launched */
};

struct capture {
    bool open;
    unsigned graph, origin, thread;
    unsigned context; /* of the stream, which names another one in another context if it is the thread's default */
    CUstreamCaptureMode mode;
    bool joined[STREAMS];
};

struct later {
    unsigned line;
    unsigned char *bytes;
    size_t size;
};

struct array {
    CUarray handle;
    unsigned context;
    size_t width;
    bool defined;
};

struct opened {
    bool open;
    unsigned block, generation;
    size_t size;
};

/* All that a program has: one for each thread, or one for all. */
struct space {
    struct context *contexts[CONTEXTS];
    struct context own;
    struct stream streams[STREAMS];
    struct event events[EVENTS];
    struct block blocks[BLOCKS];
    struct graph graphs[GRAPHS];
    CUmemoryPool pools[POOLS];
    struct array arrays[ARRAYS];
    struct opened opened[OPENED];
    struct capture capture;
    sem_t locks[LOCKS];
    bool held[LOCKS];
    struct later later[LATER];
    unsigned later_count;
    bool allocated[CONTEXTS]; /* in these contexts, at some time */
    uint64_t kept;            /* bytes of pools' blocks that were forgotten with their context, and live on */
    uint64_t chains[CHAINS];  /* of captured host functions, one for each capture */
    unsigned chain_count;
    unsigned event_lives; /* events that were made */
};

struct self {
    unsigned number;
    struct space *space;
    char *text;
    size_t used;
    uint64_t calls;
    int current; /* slot of the current context, or -1 */
    bool gone;   /* another thread has destroyed it */
    CUstreamCaptureMode mode;
    const struct line *line;
};

typedef void (*operation_run)(struct self *self, const unsigned long long *n);

enum operation_flags {
    WAITS = 1,   /* may wait for work that needs a lock */
    SERIAL = 2,  /* only where no other thread runs: in lockstep, or with one thread, or as '*' */
    PRIVATE = 4, /* not where another thread's work may be captured: looks at whole contexts */
};

struct operation {
    const char *name;
    operation_run run;
    unsigned flags;
};

extern const struct operation memory_operations[], data_operations[], stream_operations[], graph_operations[],
    node_operations[], context_operations[], query_operations[], sharing_operations[];

extern struct self selves[THREADS];
extern bool strict; /* the simulated driver is as strict as a real one */
extern bool failed; /* a kernel has, and with it the process */
extern bool alone;  /* no two lines are executed at the same time */
/*
 * The driver is a real one. Calls without a stream may return before their bytes are on the GPU, where streams that do
 * not wait for the legacy one could overtake them. And a context cannot touch another's memory.
 */
extern bool real;
extern unsigned char *pattern;
extern struct context primary[2];
extern unsigned device_count; /* that programs work on: two at most */
extern int spare_device;      /* another one, or -1 */

enum { TEXT = 4 << 20 };

__attribute__((format(printf, 2, 3))) void note(struct self *self, const char *format, ...);
void note_result(struct self *self, const char *call, CUresult result);

/* Makes a call and writes down what it returned. */
#define CALL(self, call, ...)                                                                                          \
    __extension__({                                                                                                    \
        CUresult result_ = driver_##call(__VA_ARGS__);                                                                 \
        note_result(self, #call, result_);                                                                             \
        result_;                                                                                                       \
    })

/* On the first device. */
#if CUDA_VERSION >= 13000
#define CREATE_CONTEXT(self, handle, flags) CALL(self, cuCtxCreate, handle, NULL, flags, 0)
#else
#define CREATE_CONTEXT(self, handle, flags) CALL(self, cuCtxCreate, handle, flags, 0)
#endif

uint64_t hash(const unsigned char *bytes, size_t size);

/* Memory (memory.c): the block of the slot, or the next one that there is */
struct block *used_block(struct self *self, unsigned long long slot);
struct block *reachable_block(struct self *self, unsigned long long slot);
bool is_pool_memory(const struct block *block);
uint64_t whole_pages(uint64_t bytes); /* of a GPU, 2 MiB */
void forget_block(struct block *block);

/* Streams (streams.c) */
struct stream *open_stream(struct self *self, unsigned long long slot);
bool is_capturing(const struct self *self, unsigned stream);
bool may_wait(const struct self *self);
bool may_capture(const struct stream *stream); /* without a difference to other threads' work in the legacy stream */

/*
 * Lets work on the block in that stream come after all that was submitted before. False if that cannot be done without
 * waiting where that is not allowed; then the operation is left out.
 */
bool order(struct self *self, struct block *block, unsigned stream);
void used_by(struct self *self, struct block *block, unsigned stream);
bool settle_block(struct self *self, struct block *block); /* for calls that are not of a stream */
void finish_capture(struct self *self);

/* The graph is not launched once the block is another one (graphs.c). */
void graph_uses(const struct self *self, struct graph *graph, const struct block *block);

/*
 * Whether the driver would refuse to allocate or free, and break off the capture that is open. The interposer allows it
 * (a documented difference), so programs leave it out.
 */
bool capture_refuses(const struct self *self);
/* Likewise for the legacy stream, and captures of streams that it waits for, whatever their mode. */
bool capture_refuses_in(const struct self *self, unsigned stream);
void release_locks(struct space *space);
void synchronize_all(struct self *self);
unsigned context_of(struct self *self, unsigned stream);

/* Contexts (contexts.c) */
void load_functions(struct self *self, struct context *context);
void drop_context(struct space *space, unsigned context);
extern struct space *all_spaces;
extern unsigned space_count;
int start_partner(void);
void wait_everywhere(struct self *self);
/* On a GPU, before the block is freed: what another process still has open must not be. */
void close_elsewhere(struct self *self, const struct block *block);

/* Sharing (sharing.c) */
void find_scheduler(void); /* where there is one: not where the driver is bare */

#endif
