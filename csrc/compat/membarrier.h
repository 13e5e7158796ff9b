/* SPDX-License-Identifier: BSD-3-Clause */
/* membarrier(2): <linux/membarrier.h> does not exist on the oldest supported build system. */
#ifndef GPUSHARE_COMPAT_MEMBARRIER_H
#define GPUSHARE_COMPAT_MEMBARRIER_H

#include <sys/syscall.h>

enum { MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4 };

#ifndef SYS_membarrier
#ifdef __x86_64__
#define SYS_membarrier 324
#else
#define SYS_membarrier 283
#endif
#endif

#endif
