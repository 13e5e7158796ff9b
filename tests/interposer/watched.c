/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A driver before the simulated one: each function counts a call that comes while none may, and goes on there.
 * WATCHED names a file of two words, which the test and this share: no call may come; calls that came all the same.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef __x86_64__
#error "made for x86-64"
#endif

__attribute__((visibility("hidden"))) volatile uint32_t *watched;

/* A tail jump: arguments may be anywhere. No function owns r11 between calls. */
#define SYMBOL(base, since, per_thread, name)                                                                          \
    __attribute__((visibility("hidden"))) void *real_##name;                                                           \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                        \
            "    movq watched(%rip), %r11\n    cmpl $0, (%r11)\n    je 1f\n    lock incl 4(%r11)\n"                    \
            "1:\n    jmp *real_" #name "(%rip)\n");
#include "symbols.def"
#undef SYMBOL

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("WATCHED");
    int fd = file != NULL ? open(file, O_RDWR | O_CLOEXEC) : -1;
    void *shared = fd >= 0 ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    void *driver = dlopen("libreal.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (shared == MAP_FAILED || driver == NULL) {
        fprintf(stderr, "watched: %s\n", driver == NULL ? dlerror() : "no WATCHED");
        abort();
    }
    watched = shared;
#define SYMBOL(base, since, per_thread, name) real_##name = dlsym(driver, #name);
#include "symbols.def"
#undef SYMBOL
}
