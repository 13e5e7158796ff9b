/* SPDX-License-Identifier: BSD-3-Clause */
#include "loader/locate.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/print.h"

/* The usual directories of drivers: the last resort, for images without an ld.so.cache. */
static const char *const usual_directories[] = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
#endif
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib64-nvidia",
    "/run/opengl-driver/lib",
};

/* /etc/ld.so.cache, as every ldconfig since glibc 2.2 writes it. The old format may come before it. */
#define CACHE_MAGIC "glibc-ld.so.cache1.1"

struct cache_header {
    char magic[20];
    uint32_t count;
    uint32_t strings;
    uint32_t unused[5];
};

struct cache_entry {
    int32_t flags;
    uint32_t key;
    uint32_t value;
    uint32_t os_version;
    uint64_t hwcap;
};

struct search {
    const char *own;
    int flags;
    char **path;
};

static void *open_unless_own(const struct search *search, const char *path)
{
    /* A library for another architecture fails here, and is skipped like a missing one. */
    void *handle = dlopen(path, search->flags);
    if (handle == NULL)
        return NULL;
    char *copy = dlsym(handle, search->own) == NULL ? strdup(path) : NULL;
    if (copy == NULL) {
        dlclose(handle);
        return NULL;
    }
    *search->path = copy;
    return handle;
}

static void *open_in(const struct search *search, const char *directory, size_t length, const char *soname)
{
    char path[4096];
    if (length == 0 || directory[0] != '/')
        return NULL;
    int written = snprintf(path, sizeof(path), "%.*s/%s", (int)length, directory, soname);
    if (written < 0 || (size_t)written >= sizeof(path) || access(path, R_OK) != 0)
        return NULL;
    return open_unless_own(search, path);
}

static void *open_from_list(const struct search *search, const char *list, const char *soname)
{
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");
        void *handle = open_in(search, list, length, soname);
        if (handle != NULL)
            return handle;
        list += length + (list[length] != '\0');
    }
    return NULL;
}

static const char *cache_string(const char *base, size_t size, uint32_t offset)
{
    if (offset >= size || memchr(base + offset, '\0', size - offset) == NULL)
        return NULL;
    return base + offset;
}

static void *open_from_cache(const struct search *search, const char *soname)
{
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    off_t end = lseek(fd, 0, SEEK_END);
    size_t size = end > 0 ? (size_t)end : 0;
    void *mapped = size > 0 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (mapped == MAP_FAILED)
        return NULL;

    void *handle = NULL;
    const char *base = memmem(mapped, size, CACHE_MAGIC, sizeof(CACHE_MAGIC) - 1);
    size_t left = base != NULL ? size - (size_t)(base - (const char *)mapped) : 0;
    struct cache_header header;
    if (left >= sizeof(header)) {
        memcpy(&header, base, sizeof(header));
        size_t room = (left - sizeof(header)) / sizeof(struct cache_entry);
        for (size_t i = 0; i < header.count && i < room && handle == NULL; i++) {
            struct cache_entry entry;
            memcpy(&entry, base + sizeof(header) + i * sizeof(entry), sizeof(entry));
            const char *key = cache_string(base, left, entry.key);
            const char *value = cache_string(base, left, entry.value);
            if (key != NULL && value != NULL && strcmp(key, soname) == 0)
                handle = open_unless_own(search, value);
        }
    }
    munmap(mapped, size);
    return handle;
}

void *gs_locate(const char *variable, const char *soname, const char *own, int flags, char **path)
{
    struct search search = {.own = own, .flags = flags, .path = path};
    const char *named = getenv(variable);
    void *handle = NULL;
    if (named != NULL && named[0] != '\0') {
        if (named[0] == '/')
            handle = open_unless_own(&search, named);
        if (handle == NULL)
            gs_print("%s=%s is not the absolute path of a usable %s; searching for one", variable, named, soname);
    }
    if (handle == NULL)
        handle = open_from_list(&search, getenv("LD_LIBRARY_PATH"), soname);
    if (handle == NULL)
        handle = open_from_cache(&search, soname);
    for (size_t i = 0; handle == NULL && i < sizeof(usual_directories) / sizeof(usual_directories[0]); i++)
        handle = open_in(&search, usual_directories[i], strlen(usual_directories[i]), soname);
    return handle;
}

/*
 * Unlike libcuda, libnvidia-ml is not linked with -Bsymbolic. Its calls to its own functions would reach the shim,
 * which comes first, and the shim's changes would apply twice. RTLD_DEEPBIND makes it prefer its own functions.
 * Sanitizers refuse that flag. Their runs use the simulated NVML, which does not need it.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NVML_FLAGS (RTLD_NOW | RTLD_LOCAL)
#else
#define NVML_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

void *gs_locate_nvml(void)
{
    char *path = NULL;
    void *handle = gs_locate("GPUSHARE_NVML", "libnvidia-ml.so.1", "gpushare_nvml_shim", NVML_FLAGS, &path);
    free(path);
    return handle;
}
