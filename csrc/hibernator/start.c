/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The first code of a program is in the linker's crt1.o, which the .symver directives here do not affect. Linked on
 * glibc 2.34 or newer, it requires __libc_start_main of 2.34. It finds this function instead, which calls the old
 * version.
 */
#ifdef __x86_64__
__asm__(".symver old_start,__libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start,__libc_start_main@GLIBC_2.17");
#endif

typedef int program(int argc, char **argv, char **environment);

int old_start(program *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*end)(void),
              void *stack);
int __libc_start_main(program *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*end)(void),
                      void *stack);

int __libc_start_main(program *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*end)(void),
                      void *stack)
{
    return old_start(main, argc, argv, init, fini, end, stack);
}
