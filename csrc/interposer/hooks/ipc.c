/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on CUDA IPC of memory (ipc.h), and on other functions that share memory. */
#include "hooks/ipc.h"
#include "memory/block.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "hooks/pool.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/devices.h"
#include "memory/memory.h"
#include "memory/view.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Descriptors in one message. The kernel accepts at most 253, and many processes may have only 1024 open. */
enum { BATCH = 64, PATIENCE_SECONDS = 10 };

/* When a process is stopped and continued, a call with a time limit is interrupted, whatever signals are blocked. */
#define AGAIN(call)                                                                                                    \
    __extension__({                                                                                                    \
        ssize_t done_;                                                                                                 \
        do                                                                                                             \
            done_ = (call);                                                                                            \
        while (done_ < 0 && errno == EINTR);                                                                           \
        done_;                                                                                                         \
    })

static const char mark[8] = "GPUSHARE";

/* The contents of a CUipcMemHandle. */
struct token {
    char mark[sizeof(mark)];
    uint64_t nonce; /* part of the socket's name */
    uint64_t base, id, size;
    int32_t pid;
    uint32_t uid;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcMemHandle), "a token fits in a handle");

/* The first answer to a token. As many descriptors as there are pieces follow. */
struct offer {
    uint64_t size, piece_size, offset;
    uint32_t pieces; /* 0: the allocation no longer exists */
    int32_t problem; /* a CUresult */
};

/* Memory of another process that this process has opened. */
struct opened {
    struct gs_node node; /* by the address that the application got */
    struct token token;
    CUdeviceptr start; /* the address of the whole block */
    size_t size;
    CUcontext context;
    CUdevice device;
    unsigned references;
};

static struct {
    struct gs_mutex lock;
    int listener; /* -1: none */
    uint64_t nonce;
    struct gs_map opened;
} ipc = {.lock = GS_MUTEX(GS_RANK_IPC), .listener = -1};

static socklen_t socket_name(struct sockaddr_un *address, uint64_t nonce)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    /* An abstract name (its first byte is 0): it disappears with the process. */
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "gpushare-ipc-%016llx",
                          (unsigned long long)nonce);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Abstract names have no permissions. */
static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void be_patient(int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

/* --- The process that owns the memory --- */

static bool send_descriptors(int fd, const int *descriptors, unsigned count)
{
    char room[CMSG_SPACE(BATCH * sizeof(int))] = {0}, byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    return AGAIN(sendmsg(fd, &message, MSG_NOSIGNAL)) == 1;
}

static void give_block(struct gs_block *block, size_t offset, void *argument)
{
    int fd = *(int *)argument;
    struct offer offer = {.size = block->size,
                          .piece_size = block->piece_size,
                          .offset = offset,
                          .pieces = block->unevictable ? block->piece_count : 0};
    if (AGAIN(send(fd, &offer, sizeof(offer), MSG_NOSIGNAL)) != sizeof(offer))
        return;
    GS_LEAVES_CAPTURES_ALONE;
    int descriptors[BATCH];
    unsigned count = 0;
    bool good = true;
    for (unsigned i = 0; i < offer.pieces && good; i++) {
        good = GS_REAL(cuMemExportToShareableHandle)(&descriptors[count], block->pieces[i].handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
        count += good;
        if (good && count < BATCH && i + 1 < offer.pieces)
            continue;
        good = good && send_descriptors(fd, descriptors, count);
        while (count > 0)
            close(descriptors[--count]);
    }
}

static void serve(int fd)
{
    struct token token;
    be_patient(fd);
    if (!same_user(fd) || AGAIN(recv(fd, &token, sizeof(token), 0)) != sizeof(token))
        return;
    if (!gs_memory_with_block(token.base, token.id, give_block, &fd)) {
        const struct offer none = {.pieces = 0};
        AGAIN(send(fd, &none, sizeof(none), MSG_NOSIGNAL));
    }
}

static void *listen_for_peers(void *argument)
{
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EMFILE || errno == ENFILE)) {
            poll(NULL, 0, 10);
            continue;
        }
        if (fd < 0)
            return NULL;
        serve(fd);
        close(fd);
    }
}

/* Signals must be delivered to the application's threads. */
static bool start_listening(int listener)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, listen_for_peers, (void *)(intptr_t)listener) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

static bool ensure_listener(uint64_t *nonce)
{
    gs_mutex_lock(&ipc.lock);
    if (ipc.listener < 0 && syscall(SYS_getrandom, &ipc.nonce, sizeof(ipc.nonce), 0) == sizeof(ipc.nonce)) {
        struct sockaddr_un address;
        socklen_t length = socket_name(&address, ipc.nonce);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 16) == 0 && start_listening(fd))
            ipc.listener = fd;
        else if (fd >= 0)
            close(fd);
    }
    bool listening = ipc.listener >= 0;
    *nonce = ipc.nonce;
    gs_mutex_unlock(&ipc.lock);
    return listening;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct gs_memory_view view;
    CUcontext current = NULL;
    /* The driver requires a current context, but any will do. */
    if (!gs_session_attached() || handle == NULL || !gs_memory_can_move() || !gs_memory_find(address, &view) ||
        GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return GS_REAL(cuIpcGetMemHandle)(handle, address);
    if (view.freed)
        return CUDA_ERROR_INVALID_VALUE;
    if (gs_pool_of(view.base) != NULL)
        return CUDA_ERROR_INVALID_VALUE; /* as documented: pools have their own interface for this */
    struct token token = {.base = view.base, .id = view.id, .size = view.size, .pid = getpid(), .uid = geteuid()};
    if (view.managed || gs_device_handle_type(view.device) == CU_MEM_HANDLE_TYPE_NONE ||
        !ensure_listener(&token.nonce)) {
        gs_print(
            "CUDA IPC is not available, because this backend or driver cannot export memory. To use CUDA IPC, start "
            "the program with GPUSHARE_BACKEND=plain");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = gs_memory_make_unevictable(view.base, view.size);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(token.mark, mark, sizeof(mark));
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &token, sizeof(token));
    return CUDA_SUCCESS;
}

/* --- The process that opens the memory --- */

static unsigned receive_descriptors(int fd, int *descriptors)
{
    char room[CMSG_SPACE(BATCH * sizeof(int))], byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    if (AGAIN(recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) != 1)
        return 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
        return 0;
    size_t bytes = header->cmsg_len - CMSG_LEN(0);
    memcpy(descriptors, CMSG_DATA(header), bytes);
    return (unsigned)(bytes / sizeof(int));
}

static CUresult map_descriptor(int descriptor, CUdeviceptr address, size_t bytes, CUdevice *device)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    CUresult result = GS_REAL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)descriptor,
                                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuMemMap)(address, bytes, 0, handle, 0);
    GS_REAL(cuMemRelease)(handle); /* the mapping keeps the memory */
    *device = properties.location.id;
    return result;
}

static void unmap(const struct opened *opened, size_t mapped)
{
    if (mapped != 0)
        GS_REAL(cuMemUnmap)(opened->start, mapped);
    GS_REAL(cuMemAddressFree)(opened->start, opened->size);
}

static CUresult map_block(int fd, const struct offer *offer, struct opened *opened)
{
    GS_LEAVES_CAPTURES_ALONE;
    opened->size = offer->size;
    CUresult result = GS_REAL(cuMemAddressReserve)(&opened->start, opened->size, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    size_t mapped = 0;
    while (result == CUDA_SUCCESS && mapped < opened->size) {
        int descriptors[BATCH];
        unsigned count = receive_descriptors(fd, descriptors);
        if (count == 0)
            result = CUDA_ERROR_INVALID_HANDLE; /* the owner has exited meanwhile */
        for (unsigned i = 0; i < count; i++) {
            size_t left = opened->size - mapped, bytes = left < offer->piece_size ? left : offer->piece_size;
            if (result == CUDA_SUCCESS && left != 0) {
                result = map_descriptor(descriptors[i], opened->start + mapped, bytes, &opened->device);
                mapped += result == CUDA_SUCCESS ? bytes : 0;
            }
            close(descriptors[i]);
        }
    }
    CUdevice current;
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuCtxGetDevice)(&current);
    if (result == CUDA_SUCCESS) {
        const CUmemAccessDesc access[2] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = current},
                                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                           {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = opened->device},
                                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
        result = GS_REAL(cuMemSetAccess)(opened->start, opened->size, access, current == opened->device ? 1 : 2);
    }
    if (result != CUDA_SUCCESS)
        unmap(opened, mapped);
    return result;
}

static CUresult open_token(struct opened *opened)
{
    struct sockaddr_un address;
    struct offer offer;
    socklen_t length = socket_name(&address, opened->token.nonce);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    be_patient(fd);
    gs_lock_waits(GS_RANK_GROWTH);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (AGAIN(connect(fd, (struct sockaddr *)&address, length)) == 0 && same_user(fd) &&
        AGAIN(send(fd, &opened->token, sizeof(opened->token), MSG_NOSIGNAL)) == sizeof(opened->token) &&
        AGAIN(recv(fd, &offer, sizeof(offer), 0)) == sizeof(offer) && offer.pieces != 0 && offer.piece_size != 0 &&
        offer.size != 0 && offer.offset < offer.size)
        result = map_block(fd, &offer, opened);
    close(fd);
    if (result == CUDA_SUCCESS)
        opened->node.key = opened->start + offer.offset;
    return result;
}

static struct opened *find_token(const struct token *token, CUcontext context)
{
    struct gs_node *node = gs_map_floor(&ipc.opened, UINT64_MAX);
    while (node != NULL) {
        struct opened *opened = (struct opened *)node;
        if (opened->context == context && memcmp(&opened->token, token, sizeof(*token)) == 0)
            return opened;
        node = gs_map_floor(&ipc.opened, node->key - 1);
    }
    return NULL;
}

/* Uses memory that was opened before, and otherwise `fresh`. NULL if that is NULL, too. */
static struct opened *use(const struct token *token, CUcontext context, struct opened *fresh, CUdeviceptr *address)
{
    gs_mutex_lock(&ipc.lock);
    struct opened *opened = find_token(token, context);
    if (opened == NULL && fresh != NULL) {
        gs_map_insert(&ipc.opened, &fresh->node);
        opened = fresh;
    }
    if (opened != NULL) {
        opened->references++;
        *address = opened->node.key;
    }
    gs_mutex_unlock(&ipc.lock);
    return opened;
}

/* If a handle is opened again in the same context, the result is the same address. */
static CUresult open_handle(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned int flags)
{
    struct token token;
    CUcontext context = NULL;
    memcpy(&token, handle, sizeof(token));
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = GS_REAL(cuCtxGetCurrent)(&context);
    if (result != CUDA_SUCCESS || context == NULL || token.pid == getpid())
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
    context = gs_context_owner(context);
    if (use(&token, context, NULL, address) != NULL)
        return CUDA_SUCCESS;
    struct opened *opened = calloc(1, sizeof(*opened));
    if (opened == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    opened->token = token;
    opened->context = context;
    /* Without the lock, because the other process may be stopped, and other threads query addresses meanwhile. */
    result = open_token(opened);
    bool used = result == CUDA_SUCCESS && use(&token, context, opened, address) == opened;
    if (result == CUDA_SUCCESS && !used)
        unmap(opened, opened->size); /* another thread was faster */
    if (!used)
        free(opened);
    return result;
}

static bool is_own_handle(const CUipcMemHandle *handle)
{
    return gs_session_attached() && memcmp(handle, mark, sizeof(mark)) == 0;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    if (!is_own_handle(&handle) || address == NULL)
        return GS_REAL(cuIpcOpenMemHandle)(address, handle, flags);
    return open_handle(address, &handle, flags);
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    if (!is_own_handle(&handle) || address == NULL)
        return GS_REAL(cuIpcOpenMemHandle_v2)(address, handle, flags);
    return open_handle(address, &handle, flags);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
    gs_mutex_lock(&ipc.lock);
    struct opened *opened = (struct opened *)gs_map_floor(&ipc.opened, address);
    bool found = opened != NULL && opened->node.key == address;
    bool last = found && --opened->references == 0;
    if (last)
        gs_map_remove(&ipc.opened, address);
    gs_mutex_unlock(&ipc.lock);
    if (!found)
        return GS_REAL(cuIpcCloseMemHandle)(address);
    if (last) {
        GS_LEAVES_CAPTURES_ALONE;
        gs_memory_await_work(opened->context);
        unmap(opened, opened->size);
        free(opened);
    }
    return CUDA_SUCCESS;
}

/* Removes from the table the first memory that was opened in the context. NULL: none is left. */
static struct opened *take_any_of(CUcontext context)
{
    gs_mutex_lock(&ipc.lock);
    struct gs_node *node = gs_map_floor(&ipc.opened, UINT64_MAX);
    while (node != NULL && ((struct opened *)node)->context != context)
        node = gs_map_floor(&ipc.opened, node->key - 1);
    if (node != NULL)
        gs_map_remove(&ipc.opened, node->key);
    gs_mutex_unlock(&ipc.lock);
    return (struct opened *)node;
}

void gs_ipc_context_ends(CUcontext context)
{
    GS_LEAVES_CAPTURES_ALONE;
    for (struct opened *opened; (opened = take_any_of(context)) != NULL; free(opened))
        unmap(opened, opened->size);
}

bool gs_ipc_find(CUdeviceptr address, struct gs_memory_view *view)
{
    gs_mutex_lock(&ipc.lock);
    struct opened *opened = (struct opened *)gs_map_floor(&ipc.opened, address);
    bool found = opened != NULL && address - opened->node.key < opened->token.size;
    if (found)
        *view = (struct gs_memory_view){.base = opened->node.key,
                                        .size = opened->token.size,
                                        .device = opened->device,
                                        .context = opened->context,
                                        .id = opened->token.nonce ^ opened->token.id};
    gs_mutex_unlock(&ipc.lock);
    return found;
}

/* The parent's listener continues in the parent. */
void gs_ipc_after_fork(void)
{
    gs_mutex_after_fork(&ipc.lock);
    if (ipc.listener >= 0)
        close(ipc.listener);
    ipc.listener = -1;
}

/* --- Memory for other devices and drivers (dma-buf) --- */

CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size,
                                               CUmemRangeHandleType type, unsigned long long flags)
{
    CUresult result = gs_session_attached() ? gs_memory_make_unevictable(address, size) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : GS_REAL(cuMemGetHandleForAddressRange)(handle, address, size, type, flags);
}
