/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program's first step is in the linker's own object (crt1.o), which no .symver of ours reaches: linked on glibc 2.34
 * or newer, it asks for __libc_start_main of 2.34. It finds this one, which passes on to the one that was always there.
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
