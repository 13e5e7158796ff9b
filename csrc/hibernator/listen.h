/* SPDX-License-Identifier: BSD-3-Clause */
/* The hibernator as a service of its own, with privileges that its schedulers do not have. */
#ifndef GPUSHARE_HIBERNATOR_LISTEN_H
#define GPUSHARE_HIBERNATOR_LISTEN_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Listens on a Unix socket (SOCK_SEQPACKET) that only the allowed user can reach. On failure, prints the reason and
 * returns -1.
 */
int hib_open_socket(const char *path, uid_t allowed);

/*
 * Serves until SIGTERM, SIGINT or SIGHUP. Then waits some seconds at most for the calls that are still running. Each
 * message is one request (serve.h). `allowed`: the user whose schedulers are served, if they are in the PID namespace
 * of this process.
 */
void hib_listen(int listener, uid_t allowed);

#endif
