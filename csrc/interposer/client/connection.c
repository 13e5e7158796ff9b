/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/connection.h"

#include "base/print.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { SEND_TIMEOUT_MS = 2000, MOST_TRUSTED = 16, MOST_FRAME = 4096 };

/* The settings from the environment. They are read once, before the application's threads change the environment. */
static struct {
    char ticket_file[PATH_MAX];
    uid_t trusted[MOST_TRUSTED];
    unsigned trusted_count;
} settings;

static void read_trusted(const char *text)
{
    for (const char *rest = text; *rest != '\0';) {
        char *end;
        errno = 0;
        unsigned long uid = strtoul(rest, &end, 10);
        bool number = end != rest && *rest != '-' && errno == 0 && uid < UINT32_MAX;
        if (!number || (*end != '\0' && *end != ',') || settings.trusted_count == MOST_TRUSTED) {
            gs_print("ignored GPUSHARE_SCHEDULER_UID=%s: it is not a list of at most %d uids separated by commas", text,
                     (int)MOST_TRUSTED);
            settings.trusted_count = 0;
            return;
        }
        settings.trusted[settings.trusted_count++] = (uid_t)uid;
        rest = *end == ',' ? end + 1 : end;
    }
}

static void read_settings(void)
{
    const char *trusted = getenv("GPUSHARE_SCHEDULER_UID");
    if (trusted != NULL)
        read_trusted(trusted);
    const char *file = getenv("GPUSHARE_TICKET_FILE");
    if (file == NULL)
        return;
    if (strlen(file) >= sizeof(settings.ticket_file))
        gs_print("ignored GPUSHARE_TICKET_FILE: the path is longer than %zu bytes", sizeof(settings.ticket_file) - 1);
    else
        memcpy(settings.ticket_file, file, strlen(file) + 1);
}

static bool is_trusted(uid_t uid)
{
    if (uid == 0 || uid == geteuid())
        return true;
    for (unsigned i = 0; i < settings.trusted_count; i++)
        if (settings.trusted[i] == uid)
            return true;
    return false;
}

int gs_connect(const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
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
    else if (!is_trusted(peer.uid))
        problem = EACCES;
    if (problem != 0) {
        close(fd);
        return -problem;
    }
    return fd;
}

/* Returns the frame's length, or 0 if it is too long for one. */
static size_t make_frame(char *frame, size_t room, uint16_t type, const void *body, size_t size)
{
    struct gpushare_header header = {.length = (uint32_t)(sizeof(header) + size), .type = type};
    if (size > MOST_FRAME - sizeof(header) || header.length > room)
        return 0;
    memcpy(frame, &header, sizeof(header));
    if (size != 0)
        memcpy(frame + sizeof(header), body, size);
    return header.length;
}

bool gs_send(int fd, uint16_t type, const void *body, size_t size)
{
    char frame[MOST_FRAME];
    size_t length = make_frame(frame, sizeof(frame), type, body, size);
    for (size_t sent = 0; sent < length;) {
        ssize_t n = send(fd, frame + sent, length - sent, MSG_NOSIGNAL);
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
    return length != 0;
}

void gs_outbox_clear(struct gs_outbox *outbox)
{
    outbox->begin = outbox->end = outbox->usages = 0;
}

bool gs_outbox_empty(const struct gs_outbox *outbox)
{
    return outbox->begin == outbox->end;
}

static size_t frame_length(const struct gs_outbox *outbox, size_t at)
{
    struct gpushare_header header;
    memcpy(&header, outbox->bytes + at, sizeof(header));
    return header.length;
}

/* Moves the unsent bytes to the start of the outbox. */
static void compact(struct gs_outbox *outbox)
{
    memmove(outbox->bytes, outbox->bytes + outbox->begin, outbox->end - outbox->begin);
    outbox->end -= outbox->begin;
    outbox->usages -= outbox->begin;
    outbox->begin = 0;
}

/* Replaces an unsent USAGE of the same GPU with this one. False if there is none. */
static bool supersede(struct gs_outbox *outbox, const void *usage)
{
    for (size_t at = outbox->usages; at < outbox->end; at += frame_length(outbox, at)) {
        char *earlier = outbox->bytes + at + sizeof(struct gpushare_header);
        if (memcmp(earlier, usage, sizeof(((struct gpushare_usage *)NULL)->gpu)) != 0)
            continue;
        memcpy(earlier, usage, sizeof(struct gpushare_usage));
        return true;
    }
    return false;
}

static bool keep_frame(struct gs_outbox *outbox, uint16_t type, const void *body, size_t size)
{
    if (type == GPUSHARE_USAGE && supersede(outbox, body))
        return true;
    if (outbox->end + sizeof(struct gpushare_header) + size > sizeof(outbox->bytes))
        compact(outbox);
    size_t length = make_frame(outbox->bytes + outbox->end, sizeof(outbox->bytes) - outbox->end, type, body, size);
    outbox->end += length;
    if (type != GPUSHARE_USAGE)
        outbox->usages = outbox->end;
    return length != 0;
}

bool gs_flush(int fd, struct gs_outbox *outbox)
{
    while (outbox->begin < outbox->end) {
        ssize_t n = send(fd, outbox->bytes + outbox->begin, outbox->end - outbox->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            outbox->begin += (size_t)n;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            return false;
    }
    while (outbox->usages < outbox->begin)
        outbox->usages += frame_length(outbox, outbox->usages);
    if (outbox->begin == outbox->end)
        gs_outbox_clear(outbox);
    return true;
}

bool gs_post(int fd, struct gs_outbox *outbox, uint16_t type, const void *body, size_t size)
{
    return gs_flush(fd, outbox) && keep_frame(outbox, type, body, size) && gs_flush(fd, outbox);
}

/* Reads the file's first line. Returns NULL if the ticket can be used, and otherwise the reason why not. */
static const char *read_ticket(int file, char *ticket, size_t size)
{
    struct stat found;
    /* glibc exports fstat only since version 2.33. */
    if (syscall(SYS_fstat, file, &found) != 0)
        return strerror(errno);
    if (!S_ISREG(found.st_mode))
        return "it is not a file";
    if (found.st_uid != geteuid())
        return "it belongs to another user";
    if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return "other users can access it; its mode has to be 0600";
    ssize_t length = read(file, ticket, size);
    if (length < 0)
        return strerror(errno);
    if ((size_t)length == size)
        return "it contains no ticket";
    ticket[length] = '\0';
    ticket[strcspn(ticket, "\n")] = '\0';
    return *ticket == '\0' ? "it contains no ticket" : NULL;
}

enum gs_ticket gs_present_ticket(int fd)
{
    if (*settings.ticket_file == '\0')
        return GS_TICKET_NONE;
    struct gpushare_ticket message = {.ticket = ""};
    /* Does not follow a link that another user made, and does not block on a FIFO. */
    int file = open(settings.ticket_file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (file < 0 && errno == ENOENT)
        return GS_TICKET_MISSING;
    const char *wrong = file < 0 && errno == ELOOP ? "it is a symbolic link" : strerror(errno);
    if (file >= 0) {
        wrong = read_ticket(file, message.ticket, sizeof(message.ticket));
        close(file);
    }
    /* A process that keeps trying to connect prints each reason once. */
    static const char *reported;
    const char *before = __atomic_exchange_n(&reported, wrong, __ATOMIC_RELAXED);
    if (wrong != NULL) {
        if (wrong != before)
            gs_print("the ticket %s cannot be used: %s. Restart the kernel to get a new ticket", settings.ticket_file,
                     wrong);
        return GS_TICKET_BAD;
    }
    gs_send(fd, GPUSHARE_TICKET, &message, sizeof(message));
    return GS_TICKET_SENT;
}

void gs_inbox_clear(struct gs_inbox *inbox)
{
    if (inbox->descriptor >= 0)
        close(inbox->descriptor);
    inbox->descriptor = -1;
    inbox->used = inbox->taken = 0;
}

/* Closes received descriptors that this process did not request. */
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
