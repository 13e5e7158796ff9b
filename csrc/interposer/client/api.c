/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/api.h"

#include "base/clock.h"
#include "base/session.h"
#include "client/attach.h"
#include "client/bursts.h"
#include "client/connection.h"
#include "client/waits.h"
#include "gate/awake.h"
#include "memory/backing.h"
#include "memory/devices.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t control_patience = UINT64_C(5000000000);

const char *gpushare_version(void)
{
    return GPUSHARE_VERSION;
}

int gpushare_attached(const char **why)
{
    const char *reason =
        gs_session_attached() && gs_attach_is_refused() ? "the scheduler refused this process" : gs_session_why_not();
    if (why != NULL)
        *why = reason;
    return reason == NULL && gs_session_attached() ? 1 : reason == NULL ? 0 : -1;
}

void gpushare_cell_begin(const char *msg_id)
{
    gs_bursts_cell(GPUSHARE_PHASE_BEGIN, msg_id);
}

void gpushare_cell_end(const char *msg_id)
{
    gs_bursts_cell(GPUSHARE_PHASE_END, msg_id);
}

int gpushare_oversubscribe(int on, const char **why)
{
    const char *reason = gs_session_why_not();
    struct gs_slot *called;
    bool done = false;
    if (reason == NULL && gs_awake_enter(&called) != CUDA_SUCCESS) {
        reason = "this process is hibernated and was not woken for this request";
    } else if (reason == NULL) {
        done = gs_memory_oversubscribe(on != 0, &reason);
        gs_awake_leave(called);
    }
    if (why != NULL)
        *why = reason;
    return done ? 0 : -1;
}

int gpushare_oversubscribes(void)
{
    return gs_memory_oversubscribes();
}

uint32_t gpushare_contended(void)
{
    return gs_session_contended();
}

int gpushare_take_interrupt(void)
{
    return gs_waits_take_cancelled();
}

const char *gpushare_group(void)
{
    const char *group = gs_attach_group();
    if (*group != '\0')
        return group;
    /* Before the first cuInit, the name is read from the environment, as cuInit will read it. */
    group = getenv("GPUSHARE_GROUP");
    return group != NULL ? group : "";
}

int gpushare_own_memory(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total)
{
    return gs_session_attached() && gs_devices_own(uuid, footprint, total);
}

/* Sends or receives exactly `size` bytes before the deadline. */
static int transfer(int fd, char *bytes, size_t size, bool out, uint64_t deadline)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = out ? send(fd, bytes + done, size - done, MSG_NOSIGNAL) : recv(fd, bytes + done, size - done, 0);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        uint64_t now = gs_now_ns();
        if (now >= deadline)
            return -ETIMEDOUT;
        struct pollfd ready = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        poll(&ready, 1, (int)((deadline - now) / 1000000) + 1);
    }
    return 0;
}

static int64_t receive_reply(int fd, const struct gpushare_header *header, char *reply, size_t size, uint64_t deadline)
{
    size_t body = header->length - sizeof(*header);
    int64_t result;
    struct gpushare_refused refused;
    if (header->type == GPUSHARE_REFUSED && body == sizeof(refused)) {
        result = transfer(fd, (char *)&refused, body, false, deadline);
        return result == 0 ? -(int64_t)refused.code : result;
    }
    if (header->type != GPUSHARE_REPLY || header->length < sizeof(*header))
        return -EPROTO;
    if (body >= size)
        return -EMSGSIZE;
    result = transfer(fd, reply, body, false, deadline);
    if (result != 0)
        return result;
    reply[body] = '\0';
    return (int64_t)body;
}

/* If the scheduler's queue of connections is full, waits as other clients do. */
static int connect_in_time(const char *path, uint64_t deadline)
{
    useconds_t pause = 10000, longest = 200000;
    for (;;) {
        int fd = gs_connect(path);
        if (fd != -EAGAIN || gs_now_ns() >= deadline)
            return fd;
        usleep(pause);
        pause = pause * 2 < longest ? pause * 2 : longest;
    }
}

int64_t gpushare_control(const char *request, char *reply, size_t size)
{
    const char *path = getenv("GPUSHARE_SOCKET");
    if (path == NULL || *path == '\0')
        return -ENOENT;
    size_t length = strlen(request);
    struct gpushare_header header = {.length = (uint32_t)(sizeof(header) + length), .type = GPUSHARE_CONTROL};
    if (sizeof(header) + length > GPUSHARE_MAX_REQUEST)
        return -EMSGSIZE;
    uint64_t deadline = gs_now_ns() + control_patience;
    int fd = connect_in_time(path, deadline);
    if (fd < 0)
        return fd;
    int64_t result = gs_present_ticket(fd) == GS_TICKET_BAD ? -EACCES : 0;
    if (result == 0)
        result = transfer(fd, (char *)&header, sizeof(header), true, deadline);
    if (result == 0)
        result = transfer(fd, (char *)request, length, true, deadline);
    /* A scheduler that refuses a connection sends the reason before it closes. */
    if (result == 0 || result == -EPIPE)
        result = transfer(fd, (char *)&header, sizeof(header), false, deadline);
    if (result == 0)
        result = receive_reply(fd, &header, reply, size, deadline);
    close(fd);
    return result;
}
