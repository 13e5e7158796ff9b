/* SPDX-License-Identifier: BSD-3-Clause */
#include "module.h"

#include "context.h"
#include "contexts.h"
#include "digest_kernel.h"
#include "inject.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/memory.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODULE_MAGIC UINT64_C(0x53494d4d4f443031)
#define KERNEL_MAGIC UINT64_C(0x53494d4b524e4c31)

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#else
#error "the simulated driver is for x86-64 and aarch64"
#endif

struct sim_module {
    uint64_t magic;
    void *handle; /* NULL: not loaded yet */
    void *image;  /* to be loaded later */
    size_t image_size;
    unsigned kernel_count;
    struct sim_kernel *kernels;
    struct gpushare_digest_key *digest; /* not NULL: the interposer's module, which has no handle */
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* The driver's own default and variable. */
static bool is_lazy(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode == NULL || strcmp(mode, "EAGER") != 0;
}

/* The size of an ELF file in memory, or 0 if it is not an ELF file for this machine. */
static size_t image_size(const void *image)
{
    const ElfW(Ehdr) *header = image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_machine != HOST_MACHINE || header->e_type != ET_DYN)
        return 0;
    size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    const ElfW(Phdr) *segments = (const void *)((const char *)image + header->e_phoff);
    for (unsigned i = 0; i < header->e_phnum; i++)
        if (segments[i].p_offset + segments[i].p_filesz > size)
            size = segments[i].p_offset + segments[i].p_filesz;
    return size;
}

static void *open_image(const void *image, size_t size)
{
    int fd = (int)syscall(SYS_memfd_create, "gpushare-sim-module", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return NULL;
    for (size_t written = 0; written < size;) {
        ssize_t part = write(fd, (const char *)image + written, size - written);
        if (part <= 0) {
            close(fd);
            return NULL;
        }
        written += (size_t)part;
    }
    /*
     * The dynamic loader identifies a library by its path, and numbers of descriptors are reused. So each path is
     * written differently.
     */
    static unsigned opened;
    unsigned serial = __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED);
    char path[160] = "/proc/self";
    for (unsigned bit = 0; bit < 32; bit++)
        strcat(path, serial >> bit & 1 ? "/." : "/");
    /*
     * A debugger opens this path, too. The thread's id makes the path valid only in this process. Without it, the
     * debugger would open one of its own files, which might be a pipe that blocks for ever.
     */
    snprintf(path + strlen(path), sizeof path - strlen(path), "/task/%ld/fd/%d", (long)syscall(SYS_gettid), fd);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fprintf(stderr, "gpushare-sim: cannot load a module: %s\n", dlerror());
    close(fd);
    return handle;
}

static CUresult open_module(struct sim_module *module)
{
    void *handle = open_image(module->image, module->image_size);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_IMAGE;
    const struct gpushare_sim_module *description = dlsym(handle, "gpushare_sim_module");
    struct sim_kernel *kernels = description == NULL ? NULL : calloc(description->kernel_count + 1, sizeof *kernels);
    if (kernels == NULL || description->abi != GPUSHARE_SIM_KERNEL_ABI) {
        free(kernels);
        dlclose(handle);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    module->kernel_count = description->kernel_count;
    module->kernels = kernels;
    for (unsigned i = 0; i < description->kernel_count; i++) {
        const struct gpushare_sim_kernel *code = &description->kernels[i];
        Dl_info info;
        unsigned last = code->argument_count;
        kernels[i] = (struct sim_kernel){.magic = KERNEL_MAGIC,
                                         .module = module,
                                         .code = code,
                                         .name = "",
                                         .dynamic_shared_limit = 49152,
                                         .carveout = -1};
        if (last > 0)
            kernels[i].arguments_size = code->argument_offsets[last - 1] + code->argument_sizes[last - 1];
        if (dladdr(code->function, &info) != 0 && info.dli_saddr == code->function && info.dli_sname != NULL)
            kernels[i].name = info.dli_sname;
    }
    free(module->image);
    module->image = NULL;
    __atomic_store_n(&module->handle, handle, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* Finds the module of a handle, and loads it if that was postponed. */
static CUresult use(struct sim_module *module)
{
    if (module == NULL || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->digest != NULL || __atomic_load_n(&module->handle, __ATOMIC_ACQUIRE) != NULL)
        return CUDA_SUCCESS;
    if (sim_context_current != NULL)
        SIM_TRY(sim_context_grow(sim_context_current));
    pthread_mutex_lock(&loading);
    CUresult result = module->handle == NULL ? open_module(module) : CUDA_SUCCESS;
    pthread_mutex_unlock(&loading);
    return result;
}

static void module_free(struct sim_module *module)
{
    free(module->image);
    free(module);
}

static CUresult load_digest(struct sim_module **out)
{
    struct sim_module *module = calloc(1, sizeof *module);
    struct sim_kernel *kernel = calloc(1, sizeof *kernel);
    struct gpushare_digest_key *key = sim_digest_key_new();
    if (module == NULL || kernel == NULL || key == NULL) {
        free(module);
        free(kernel);
        free(key);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *kernel = (struct sim_kernel){.magic = KERNEL_MAGIC,
                                  .module = module,
                                  .code = &sim_digest_code,
                                  .name = sim_digest_name,
                                  .arguments_size = 24,
                                  .carveout = -1,
                                  .digest = key};
    *module = (struct sim_module){.magic = MODULE_MAGIC, .kernel_count = 1, .kernels = kernel, .digest = key};
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult load(const void *image, bool lazy, struct sim_module **out)
{
    SIM_REQUIRE(image != NULL && out != NULL);
    if (sim_digest_is_image(image) && !sim_config.instant)
        return load_digest(out);
    size_t size = image_size(image);
    if (size == 0) {
        const unsigned char *bytes = image;
        bool cubin = memcmp(bytes, ELFMAG, SELFMAG) == 0;
        return cubin ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_IMAGE;
    }
    struct sim_module *module = malloc(sizeof *module);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *module = (struct sim_module){.magic = MODULE_MAGIC, .image = malloc(size), .image_size = size};
    if (module->image == NULL) {
        free(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(module->image, image, size);
    CUresult result = lazy ? CUDA_SUCCESS : open_module(module);
    if (result == CUDA_SUCCESS)
        *out = module;
    else
        module_free(module);
    return result;
}

static CUresult load_file(const char *path, bool lazy, struct sim_module **out)
{
    SIM_REQUIRE(path != NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size >= (off_t)sizeof(ElfW(Ehdr))) {
        char *image = malloc((size_t)size);
        size_t filled = 0;
        ssize_t part = 1;
        while (image != NULL && filled < (size_t)size && part > 0) {
            part = pread(fd, image + filled, (size_t)size - filled, (off_t)filled);
            filled += part > 0 ? (size_t)part : 0;
        }
        if (image != NULL && filled == (size_t)size && image_size(image) <= filled)
            result = load(image, lazy, out);
        free(image);
    }
    close(fd);
    return result;
}

struct inside {
    const struct sim_module *module;
    uint64_t found;
};

static void find_inside(struct sim_range *range, void *argument)
{
    struct inside *inside = argument;
    Dl_info info;
    struct link_map *map;
    void *address = (void *)(uintptr_t)range->base;
    if (range->kind == SIM_RANGE_GLOBAL && (sim_digest_has(inside->module->digest, address) ||
                                            (dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 &&
                                             map == (struct link_map *)inside->module->handle)))
        inside->found = range->base;
}

static CUresult unload(struct sim_module *module)
{
    if (module == NULL || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_context_current != NULL)
        sim_context_drain(sim_context_current);
    module->magic = 0;
    for (;;) {
        struct inside inside = {module, 0};
        pthread_rwlock_wrlock(&sim_ranges_lock);
        sim_ranges_each(find_inside, &inside);
        if (inside.found != 0)
            sim_range_remove(sim_range_find(inside.found));
        pthread_rwlock_unlock(&sim_ranges_lock);
        if (inside.found == 0)
            break;
    }
    for (unsigned i = 0; i < module->kernel_count; i++)
        module->kernels[i].magic = 0;
    if (module->handle != NULL)
        dlclose(module->handle);
    free(module->image);
    module->image = NULL;
    free(module->digest);
    module->digest = NULL;
    /* The structures stay, so that stale handles are recognised. */
    return CUDA_SUCCESS;
}

static CUresult get_kernel(struct sim_module *module, const char *name, struct sim_kernel **out)
{
    SIM_TRY(use(module));
    SIM_REQUIRE(name != NULL && out != NULL);
    if (module->digest != NULL && strcmp(name, sim_digest_name) == 0) {
        *out = &module->kernels[0];
        return CUDA_SUCCESS;
    }
    const void *function = module->digest == NULL ? dlsym(module->handle, name) : NULL;
    for (unsigned i = 0; function != NULL && i < module->kernel_count; i++) {
        if (module->kernels[i].code->function == function) {
            *out = &module->kernels[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

static void *find_variable(struct sim_module *module, const char *name, size_t *size)
{
    if (module->digest != NULL)
        return sim_digest_variable(module->digest, name, size);
    void *found = dlsym(module->handle, name);
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (found == NULL || dladdr1(found, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL ||
        info.dli_saddr != found || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
        return NULL;
    *size = symbol->st_size;
    return found;
}

static CUresult get_global(struct sim_module *module, const char *name, CUdeviceptr *address, size_t *size)
{
    SIM_TRY(use(module));
    SIM_REQUIRE(name != NULL);
    size_t bytes = 0;
    void *found = find_variable(module, name, &bytes);
    if (found == NULL)
        return CUDA_ERROR_NOT_FOUND;
    /* So that copies recognise it as device memory. */
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)found);
    if (range == NULL) {
        range = sim_range_add_host(SIM_RANGE_GLOBAL, (uint64_t)(uintptr_t)found, bytes);
        if (range != NULL && sim_context_current != NULL)
            range->device = sim_context_current->device;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (address != NULL)
        *address = (CUdeviceptr)(uintptr_t)found;
    if (size != NULL)
        *size = bytes;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_INJECT(cuModuleLoadData);
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(sim_context_grow(context));
    return load(image, false, (struct sim_module **)module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    SIM_INJECT(cuModuleLoad);
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(sim_context_grow(context));
    SIM_REQUIRE(module != NULL);
    return load_file(path, false, (struct sim_module **)module);
}

CUresult cuModuleUnload(CUmodule module)
{
    SIM_ENTER();
    return unload((struct sim_module *)module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    SIM_ENTER();
    return get_kernel((struct sim_module *)module, name, (struct sim_kernel **)function);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    SIM_ENTER();
    return get_global((struct sim_module *)module, name, address, size);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_REQUIRE(mode != NULL);
    *mode = is_lazy() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

static CUresult count(struct sim_module *module, unsigned *number)
{
    SIM_ENTER();
    SIM_TRY(use(module));
    SIM_REQUIRE(number != NULL);
    *number = module->kernel_count;
    return CUDA_SUCCESS;
}

static CUresult enumerate(struct sim_kernel **kernels, unsigned size, struct sim_module *module)
{
    unsigned number;
    SIM_TRY(count(module, &number));
    SIM_REQUIRE(kernels != NULL);
    for (unsigned i = 0; i < size && i < number; i++)
        kernels[i] = &module->kernels[i];
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned *number, CUmodule module)
{
    return count((struct sim_module *)module, number);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned size, CUmodule module)
{
    return enumerate((struct sim_kernel **)functions, size, (struct sim_module *)module);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                           unsigned option_count, CUlibraryOption *library_options, void **library_values,
                           unsigned library_option_count)
{
    SIM_INJECT(cuLibraryLoadData);
    SIM_ENTER();
    (void)options;
    (void)values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_option_count;
    return load(code, is_lazy(), (struct sim_module **)library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                               unsigned option_count, CUlibraryOption *library_options, void **library_values,
                               unsigned library_option_count)
{
    SIM_ENTER();
    (void)options;
    (void)values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_option_count;
    SIM_REQUIRE(library != NULL);
    return load_file(path, is_lazy(), (struct sim_module **)library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    SIM_ENTER();
    return unload((struct sim_module *)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    SIM_ENTER();
    return get_kernel((struct sim_module *)library, name, (struct sim_kernel **)kernel);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    return get_global((struct sim_module *)library, name, address, size);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    SIM_ENTER();
    SIM_REQUIRE(module != NULL);
    SIM_TRY(use((struct sim_module *)library));
    *module = (CUmodule)(void *)library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned *number, CUlibrary library)
{
    return count((struct sim_module *)library, number);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned size, CUlibrary library)
{
    return enumerate((struct sim_kernel **)kernels, size, (struct sim_module *)library);
}

CUresult sim_kernel_find(CUfunction handle, struct sim_kernel **kernel)
{
    *kernel = (struct sim_kernel *)handle;
    return *kernel != NULL && (*kernel)->magic == KERNEL_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_kernel_load(struct sim_kernel *kernel)
{
    if (__atomic_load_n(&kernel->loaded, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    struct sim_context *context = sim_context_current;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&loading);
    if (!kernel->loaded && context != NULL && is_lazy()) {
        if (sim_segment_charge(context->device, SIM_CHARGE_CONTEXT, sim_config.code))
            context->code += sim_config.code;
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        __atomic_store_n(&kernel->loaded, true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&loading);
    return result;
}

#define FIND_KERNEL(variable, handle)                                                                                  \
    struct sim_kernel *variable;                                                                                       \
    SIM_ENTER();                                                                                                       \
    SIM_TRY(sim_kernel_find((CUfunction)(void *)(handle), &variable))

CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(function != NULL);
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel handle)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(library != NULL);
    *library = (CUlibrary)(void *)kernel->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(module != NULL);
    *module = (CUmodule)(void *)kernel->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(name != NULL);
    *name = kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    return cuFuncGetName(name, (CUfunction)(void *)handle);
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(offset != NULL && index < kernel->code->argument_count);
    *offset = kernel->code->argument_offsets[index];
    if (size != NULL)
        *size = kernel->code->argument_sizes[index];
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    return cuFuncGetParamInfo((CUfunction)(void *)kernel, index, offset, size);
}

CUresult cuFuncGetParamCount(CUfunction handle, size_t *number)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(number != NULL);
    *number = kernel->code->argument_count;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t *number)
{
    return cuFuncGetParamCount((CUfunction)(void *)kernel, number);
}

/* The code is for the host, so it works for any version of the current device. */
static int binary_version(void)
{
    const struct sim_unit *unit = sim_segment_unit(sim_context_current != NULL ? sim_context_current->device : 0);
    return (int)(unit->major * 10 + unit->minor);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_kernel_load(kernel));
    SIM_REQUIRE(value != NULL);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = binary_version();
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = kernel->dynamic_shared_limit;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = kernel->carveout;
        break;
    default:
        SIM_REQUIRE((unsigned)attribute < CU_FUNC_ATTRIBUTE_MAX);
        *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, attribute, (CUfunction)(void *)kernel);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_kernel_load(kernel));
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        SIM_REQUIRE(value >= 0 && value <= 232448);
        kernel->dynamic_shared_limit = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        kernel->carveout = value;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)(void *)kernel, attribute, value);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
    FIND_KERNEL(kernel, handle);
    (void)kernel;
    (void)config;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    FIND_KERNEL(kernel, handle);
    SIM_REQUIRE(state != NULL);
    *state = kernel->loaded || !is_lazy() ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle)
{
    SIM_ENTER_CONTEXT(context);
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_context_grow(context));
    return sim_kernel_load(kernel);
}

static CUresult occupancy(int *blocks, CUfunction handle, int block_size)
{
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_kernel_load(kernel));
    (void)kernel;
    SIM_REQUIRE(blocks != NULL && block_size > 0);
    int by_threads = 2048 / block_size;
    *blocks = by_threads > 32 ? 32 : by_threads;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared)
{
    (void)shared;
    return occupancy(blocks, function, block_size);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                              size_t shared, unsigned flags)
{
    (void)shared;
    (void)flags;
    return occupancy(blocks, function, block_size);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize sizes,
                                          size_t shared, int limit)
{
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_kernel_load(kernel));
    (void)kernel;
    (void)sizes;
    (void)shared;
    SIM_REQUIRE(grid != NULL && block != NULL);
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = 2 * 132;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function, CUoccupancyB2DSize sizes,
                                                   size_t shared, int limit, unsigned flags)
{
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(grid, block, function, sizes, shared, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, CUfunction handle, int blocks, int block_size)
{
    FIND_KERNEL(kernel, handle);
    SIM_TRY(sim_kernel_load(kernel));
    (void)kernel;
    SIM_REQUIRE(size != NULL && blocks > 0 && block_size > 0);
    *size = 232448u / (unsigned)blocks;
    return CUDA_SUCCESS;
}
