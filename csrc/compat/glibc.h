/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Included before everything else: binds functions to their versions in glibc 2.17, because the library is preloaded
 * into programs and images of any age. Without this, code that is compiled on glibc 2.34 or newer requires 2.34. That
 * version moved the functions of libpthread and libdl into libc, under a new version.
 *
 * Newer functions (gettid, getrandom, fstat before 2.33 and others) have no old version: use syscall(2) instead.
 * tests/csrc/test_symbols.py fails if one is used.
 */
#ifndef GPUSHARE_COMPAT_GLIBC_H
#define GPUSHARE_COMPAT_GLIBC_H

#if defined(__linux__) && defined(__x86_64__)
#define GS_GLIBC_BASE "GLIBC_2.2.5"
#define GS_GLIBC_AT(symbol, old) __asm__(".symver " symbol "," symbol "@GLIBC_" old)
#elif defined(__linux__) && defined(__aarch64__)
#define GS_GLIBC_BASE "GLIBC_2.17"
#define GS_GLIBC_AT(symbol, old) __asm__(".symver " symbol "," symbol "@" GS_GLIBC_BASE)
#else
#error "the interposer supports only x86-64 and aarch64 Linux"
#endif
#define GS_GLIBC(symbol) __asm__(".symver " symbol "," symbol "@" GS_GLIBC_BASE)
/* Since version 2.38, headers replace strtoull by a function that also reads the binary numbers of C23. */
#define GS_GLIBC_AS(symbol, old) __asm__(".symver " symbol "," old "@" GS_GLIBC_BASE)

GS_GLIBC("dlopen");
GS_GLIBC("dlsym");
GS_GLIBC("dlclose");
GS_GLIBC("dlerror");
GS_GLIBC("dladdr");
GS_GLIBC_AT("dlinfo", "2.3.3");
GS_GLIBC_AT("dladdr1", "2.3.3");

GS_GLIBC("pthread_create");
GS_GLIBC("pthread_join");
GS_GLIBC("pthread_detach");
GS_GLIBC("pthread_once");
GS_GLIBC("pthread_key_create");
GS_GLIBC("pthread_key_delete");
GS_GLIBC("pthread_getspecific");
GS_GLIBC("pthread_setspecific");
GS_GLIBC("pthread_kill");
GS_GLIBC("pthread_sigmask");
GS_GLIBC("pthread_attr_setstacksize");
GS_GLIBC("pthread_mutex_trylock");
GS_GLIBC("pthread_mutex_timedlock");
GS_GLIBC("pthread_mutexattr_init");
GS_GLIBC("pthread_mutexattr_destroy");
GS_GLIBC("pthread_mutexattr_settype");
GS_GLIBC("pthread_rwlock_init");
GS_GLIBC("pthread_rwlock_destroy");
GS_GLIBC("pthread_rwlock_rdlock");
GS_GLIBC("pthread_rwlock_wrlock");
GS_GLIBC("pthread_rwlock_unlock");
GS_GLIBC("pthread_mutexattr_setpshared");
GS_GLIBC_AT("pthread_mutexattr_setrobust", "2.12");
GS_GLIBC_AT("pthread_mutex_consistent", "2.12");
GS_GLIBC_AT("pthread_condattr_setclock", "2.3.3");
GS_GLIBC_AT("pthread_setname_np", "2.12");
GS_GLIBC_AT("pthread_getname_np", "2.12");

GS_GLIBC("sem_init");
GS_GLIBC("sem_destroy");
GS_GLIBC("sem_wait");
GS_GLIBC("sem_trywait");
GS_GLIBC("sem_timedwait");
GS_GLIBC("sem_post");
GS_GLIBC("shm_open");
GS_GLIBC("shm_unlink");

GS_GLIBC_AS("__isoc23_strtol", "strtol");
GS_GLIBC_AS("__isoc23_strtoul", "strtoul");
GS_GLIBC_AS("__isoc23_strtoll", "strtoll");
GS_GLIBC_AS("__isoc23_strtoull", "strtoull");

#undef GS_GLIBC
#undef GS_GLIBC_AT
#undef GS_GLIBC_AS
#undef GS_GLIBC_BASE

#endif
