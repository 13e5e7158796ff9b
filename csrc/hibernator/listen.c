/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "listen.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/print.h"
#include "serve.h"

/* Connections at once: a machine has one scheduler, and a few more may stand by. */
#define MOST_PEERS 16
/* Descriptors with one message. More than one is an error, but must be closed. */
#define MOST_DESCRIPTORS 8
#define PAUSE_NS 100000000
#define SEND_SECONDS 1

static struct {
    int listener;
    uid_t allowed;
    unsigned peers;
} service;

int hib_open_socket(const char *path, uid_t allowed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] != '/' || strlen(path) >= sizeof(address.sun_path)) {
        gs_print("--listen needs an absolute path of at most %zu bytes, not %s", sizeof(address.sun_path) - 1, path);
        return -1;
    }
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /*
     * A hibernator that is replaced leaves its socket, and its connections stay. The new socket gets its name in one
     * step, so that there always is one.
     */
    char new[sizeof(address.sun_path)];
    int length = snprintf(new, sizeof(new), "%s.new", path);
    bool bound = listener >= 0 && length > 0 && (size_t)length < sizeof(new);
    if (bound) {
        strcpy(address.sun_path, new);
        unlink(new);
        mode_t before = umask(0177);
        bound = bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, MOST_PEERS) == 0;
        umask(before);
        bound = bound && (allowed == geteuid() || chown(new, allowed, (gid_t)-1) == 0) && rename(new, path) == 0;
    } else {
        errno = listener >= 0 ? ENAMETOOLONG : errno;
    }
    if (!bound) {
        gs_print("cannot listen on %s: %s", path, strerror(errno));
        return -1;
    }
    return listener;
}

/*
 * A process in another PID namespace may be root of a user's container. Sets errno to EACCES if the Linux kernel does
 * not say in which one it is.
 */
static bool is_here(pid_t pid)
{
    char path[64], there[64], here[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
    ssize_t own = readlink("/proc/self/ns/pid", here, sizeof(here));
    errno = 0;
    ssize_t theirs = pid > 0 ? readlink(path, there, sizeof(there)) : -1;
    return own > 0 && own == theirs && memcmp(there, here, (size_t)own) == 0;
}

static bool may_ask(int peer)
{
    struct ucred who;
    socklen_t size = sizeof(who);
    if (getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
        return false;
    bool right_user = who.uid == service.allowed;
    if (right_user && is_here(who.pid))
        return true;
    if (right_user && errno == EACCES)
        gs_print("refused a connection of uid %u, pid %d: its PID namespace cannot be read; this hibernator lacks "
                 "CAP_SYS_PTRACE, or a security module forbids it",
                 (unsigned)who.uid, (int)who.pid);
    else
        gs_print("refused a connection of uid %u, pid %d: only schedulers of uid %u in this PID namespace are served",
                 (unsigned)who.uid, (int)who.pid, (unsigned)service.allowed);
    return false;
}

/* Returns the only descriptor of a message, or -1. */
static int only_descriptor(struct msghdr *message)
{
    int found = -1;
    unsigned count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            if (found >= 0)
                close(found);
            memcpy(&found, CMSG_DATA(part) + at, sizeof(int));
            count++;
        }
    }
    if (count > 1 && found >= 0) {
        close(found);
        found = -1;
    }
    return found;
}

/* Returns false at the end of the connection, or if a request cannot be answered. */
static bool take_message(int peer)
{
    char line[HIB_LONGEST_LINE];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec room = {.iov_base = line, .iov_len = sizeof(line) - 1};
    struct msghdr message = {
        .msg_iov = &room, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t length = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
    if (length < 0)
        return errno == EINTR;
    /* An empty message can have descriptors, too. */
    int descriptor = only_descriptor(&message);
    bool whole = length > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    if (!whole) {
        if (length > 0)
            gs_print("ended a connection: a request is too long, or its descriptor cannot be received");
        if (descriptor >= 0)
            close(descriptor);
        return false;
    }
    line[length] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return hib_take_request(line, peer, HIB_BY_PIDFD, descriptor);
}

static void *serve_peer(void *argument)
{
    int peer = (int)(intptr_t)argument;
    while (take_message(peer))
        ;
    /* Requests under way have the connection, too. */
    shutdown(peer, SHUT_RDWR);
    close(peer);
    __atomic_fetch_sub(&service.peers, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void *accept_peers(void *argument)
{
    for (;;) {
        int peer = accept4(service.listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0) {
            /* There may be descriptors again later. */
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
            continue;
        }
        /* A peer that does not read must not keep the threads that answer it. */
        setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = SEND_SECONDS}, sizeof(struct timeval));
        pthread_t thread;
        bool room = __atomic_fetch_add(&service.peers, 1, __ATOMIC_RELAXED) < MOST_PEERS;
        if (room && may_ask(peer) && pthread_create(&thread, NULL, serve_peer, (void *)(intptr_t)peer) == 0) {
            pthread_detach(thread);
        } else {
            __atomic_fetch_sub(&service.peers, 1, __ATOMIC_RELAXED);
            close(peer);
        }
    }
    return argument;
}

void hib_listen(int listener, uid_t allowed)
{
    service.listener = listener;
    service.allowed = allowed;
    hib_prepare();
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, accept_peers, NULL) != 0) {
        gs_print("cannot start a thread");
        return;
    }
    int number;
    while (sigwait(&ends, &number) != 0)
        ;
    hib_let_end();
}
