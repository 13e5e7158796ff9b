/* SPDX-License-Identifier: BSD-3-Clause */
#include "confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/print.h"

#if defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "unsupported architecture"
#endif

/* Older headers lack these numbers, which are the same on all architectures. */
#define CALL_IO_URING_SETUP 425
/* Calls with numbers from here on are those of x32 programs. */
#define FIRST_FOREIGN_CALL 0x40000000

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
/* If the loaded word is not the value, the next `skip` instructions are not executed. */
#define UNLESS_SKIP(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (skip))

bool hib_confine(void)
{
    /* Only the lower half of the first argument counts: a family is an int. Both architectures are little-endian. */
    struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCHITECTURE, 1, 0),
        REFUSE(ENOSYS),
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_FOREIGN_CALL, 0, 1),
        REFUSE(ENOSYS),
        UNLESS_SKIP(SYS_execve, 1),
        REFUSE(EACCES),
        UNLESS_SKIP(SYS_execveat, 1),
        REFUSE(EACCES),
        /* It could make sockets without the call below. */
        UNLESS_SKIP(CALL_IO_URING_SETUP, 1),
        REFUSE(ENOSYS),
        UNLESS_SKIP(SYS_socket, 3),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0),
        REFUSE(EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        return true;
    gs_print("the Linux kernel does not accept the seccomp filter: %s", strerror(errno));
    return false;
}
