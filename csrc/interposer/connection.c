/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SEND_TIMEOUT_MS = 2000 };

int gs_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    int problem = 0;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        problem = errno;
    else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        problem = errno;
    else if (peer.uid != 0 && peer.uid != geteuid())
        problem = EACCES;
    if (problem != 0) {
        close(fd);
        return -problem;
    }
    return fd;
}

bool gs_send(int fd, uint16_t type, const void *body, size_t size)
{
    char frame[4096];
    struct gpushare_header header = {.length = (uint32_t)(sizeof(header) + size), .type = type};
    if (size > sizeof(frame) - sizeof(header))
        return false;
    memcpy(frame, &header, sizeof(header));
    if (size != 0)
        memcpy(frame + sizeof(header), body, size);
    for (size_t sent = 0; sent < header.length;) {
        ssize_t n = send(fd, frame + sent, header.length - sent, MSG_NOSIGNAL);
        if (n > 0) {
            sent += (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            if (poll(&room, 1, SEND_TIMEOUT_MS) == 0)
                return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

void gs_inbox_clear(struct gs_inbox *inbox)
{
    if (inbox->descriptor >= 0)
        close(inbox->descriptor);
    inbox->descriptor = -1;
    inbox->used = inbox->taken = 0;
}

/* Descriptors that nobody asked for are not kept. */
static void keep_descriptor(struct msghdr *message, struct gs_inbox *inbox)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL; control = CMSG_NXTHDR(message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (control->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            if (inbox->descriptor >= 0)
                close(inbox->descriptor);
            memcpy(&inbox->descriptor, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
        }
    }
}

bool gs_receive(int fd, struct gs_inbox *inbox)
{
    if (inbox->taken != 0) {
        memmove(inbox->bytes, inbox->bytes + inbox->taken, inbox->used - inbox->taken);
        inbox->used -= inbox->taken;
        inbox->taken = 0;
    }
    if (inbox->used == sizeof(inbox->bytes))
        return true;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec room = {.iov_base = inbox->bytes + inbox->used, .iov_len = sizeof(inbox->bytes) - inbox->used};
    struct msghdr message = {
        .msg_iov = &room, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
        inbox->used += (size_t)n;
        keep_descriptor(&message, inbox);
    }
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

enum gs_frame gs_next_frame(struct gs_inbox *inbox, struct gpushare_header *header, const void **body)
{
    size_t available = inbox->used - inbox->taken;
    if (available < sizeof(*header))
        return GS_FRAME_NONE;
    memcpy(header, inbox->bytes + inbox->taken, sizeof(*header));
    if (header->length < sizeof(*header) || header->length > sizeof(inbox->bytes))
        return GS_FRAME_BAD;
    if (available < header->length)
        return GS_FRAME_NONE;
    *body = inbox->bytes + inbox->taken + sizeof(*header);
    inbox->taken += header->length;
    return GS_FRAME_WHOLE;
}
