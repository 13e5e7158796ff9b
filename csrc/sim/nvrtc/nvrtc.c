/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The simulated NVRTC. It compiles CUDA C++ source with the host's C++ compiler into a shared object, which the
 * simulated driver loads as a module. A scan of the source finds kernels that are not templates. As with the real
 * NVRTC, name expressions instantiate templates.
 */
#include "nvrtc/scan.h"
#include "nvrtc/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8,
    NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
    NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10,
    NVRTC_ERROR_INTERNAL_ERROR = 11
} nvrtcResult;

/* The texts that precede every source. */
#define EMBED(symbol, file)                                                                                            \
    extern const char symbol[], symbol##_end[];                                                                        \
    __asm__(".pushsection .rodata\n.hidden " #symbol "\n.hidden " #symbol "_end\n.global " #symbol                     \
            "\n.global " #symbol "_end\n" #symbol ":\n.incbin \"" file "\"\n" #symbol "_end:\n.byte 0\n.popsection\n")

EMBED(abi_text, "kernel_abi.h");
EMBED(runtime_text, "device_runtime.h");

struct expression {
    struct expression *next;
    char *text, *lowered;
};

struct program {
    char *source, *name;
    int header_count;
    char **headers, **header_names;
    struct expression *expressions, **last_expression;
    bool compiled, virtual_architecture;
    struct sim_text log, image;
};

typedef struct program *nvrtcProgram;

static void add_trailer(struct sim_text *out, struct program *program, const struct sim_names *kernels)
{
    sim_text_add(out, "\n#line 1 \"kernels\"\nstatic const struct gpushare_sim_kernel gpushare_sim_kernels[] = {\n");
    size_t count = kernels->count;
    for (size_t i = 0; i < kernels->count; i++) {
        sim_text_add(out, "gpushare_sim::kernel<&::");
        sim_text_add(out, kernels->items[i]);
        sim_text_add(out, ">::describe(),\n");
    }
    for (struct expression *e = program->expressions; e != NULL; e = e->next) {
        bool known = e->text[0] == '&';
        for (size_t i = 0; i < kernels->count; i++)
            known = known || strcmp(kernels->items[i], e->text) == 0;
        if (known)
            continue;
        sim_text_add(out, "gpushare_sim::kernel<&");
        sim_text_add(out, e->text);
        sim_text_add(out, ">::describe(),\n");
        count++;
    }
    char number[256];
    snprintf(number, sizeof number,
             "{}};\nextern \"C\" __attribute__((visibility(\"default\"))) const struct gpushare_sim_module "
             "gpushare_sim_module = {GPUSHARE_SIM_KERNEL_ABI, %zu, gpushare_sim_kernels};\n",
             count);
    sim_text_add(out, number);
    sim_text_add(out, "extern \"C\" __attribute__((visibility(\"default\"))) const void *const "
                      "gpushare_sim_expressions[] = {\n");
    for (struct expression *e = program->expressions; e != NULL; e = e->next) {
        if (e->text[0] == '&') {
            sim_text_add(out, "(const void *)(");
            sim_text_add(out, e->text);
            sim_text_add(out, "),\n");
        } else {
            sim_text_add(out, "gpushare_sim::kernel<&");
            sim_text_add(out, e->text);
            sim_text_add(out, ">::describe().function,\n");
        }
    }
    sim_text_add(out, "nullptr};\n");
}

/* Options: those that the host's compiler understands are passed on, and those about GPU code are dropped. */

struct arguments {
    char *items[256];
    size_t count;
};

static void argument(struct arguments *arguments, const char *prefix, const char *value)
{
    if (arguments->count + 1 >= sizeof arguments->items / sizeof arguments->items[0])
        return;
    size_t size = strlen(prefix) + strlen(value) + 1;
    char *joined = malloc(size);
    if (joined == NULL)
        return;
    snprintf(joined, size, "%s%s", prefix, value);
    arguments->items[arguments->count++] = joined;
}

/* The value of `option` if its name is `name`: after '=', or in the next option. */
static const char *value_of(const char *option, const char *name, int count, const char *const *options, int *at)
{
    size_t length = strlen(name);
    if (strncmp(option, name, length) != 0)
        return NULL;
    if (option[length] == '=')
        return option + length + 1;
    if (option[length] == '\0' && *at + 1 < count)
        return options[++*at];
    return NULL;
}

static void translate(struct program *program, int count, const char *const *options, struct arguments *out)
{
    char architecture[32] = "900";
    bool standard = false;
    program->virtual_architecture = false;
    for (int i = 0; i < count; i++) {
        const char *option = options[i], *value;
        if ((value = value_of(option, "--gpu-architecture", count, options, &i)) != NULL ||
            (value = value_of(option, "-arch", count, options, &i)) != NULL) {
            program->virtual_architecture = strncmp(value, "compute_", 8) == 0;
            snprintf(architecture, sizeof architecture, "%d0", atoi(value + strcspn(value, "0123456789")));
        } else if ((value = value_of(option, "--std", count, options, &i)) != NULL ||
                   (value = value_of(option, "-std", count, options, &i)) != NULL) {
            /* The runtime header needs C++17. */
            bool older = strcmp(value, "c++03") == 0 || strcmp(value, "c++11") == 0 || strcmp(value, "c++14") == 0;
            argument(out, "-std=", older ? "c++17" : value);
            standard = true;
        } else if ((value = value_of(option, "--include-path", count, options, &i)) != NULL) {
            argument(out, "-I", value);
        } else if ((value = value_of(option, "--define-macro", count, options, &i)) != NULL) {
            argument(out, "-D", value);
        } else if ((value = value_of(option, "--undefine-macro", count, options, &i)) != NULL) {
            argument(out, "-U", value);
        } else if ((value = value_of(option, "--pre-include", count, options, &i)) != NULL ||
                   (value = value_of(option, "-include", count, options, &i)) != NULL) {
            argument(out, "-include", "");
            argument(out, "", value);
        } else if (option[0] == '-' && (option[1] == 'I' || option[1] == 'D' || option[1] == 'U')) {
            if (option[2] == '\0' && i + 1 < count)
                argument(out, (const char[]){'-', option[1], '\0'}, options[++i]);
            else
                argument(out, "", option);
        } else if (strcmp(option, "-w") == 0 || strcmp(option, "--disable-warnings") == 0) {
            argument(out, "-w", "");
        }
    }
    if (!standard)
        argument(out, "-std=", "c++17");
    argument(out, "-DGPUSHARE_SIM_CUDA_ARCH=", architecture);
}

extern char **environ;

/* Runs the compiler without this process's preloads. Its messages go to the log. */
static int run(char *const *command, struct sim_text *log)
{
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    char **environment = calloc(count + 1, sizeof *environment);
    int ends[2];
    if (environment == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(environment);
        return -1;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0)
            environment[kept++] = environ[i];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    pid_t pid;
    int error = posix_spawnp(&pid, command[0], &actions, NULL, command, environment);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    close(ends[1]);
    int status = -1;
    if (error == 0) {
        char buffer[4096];
        ssize_t length;
        while ((length = read(ends[0], buffer, sizeof buffer)) > 0 || (length < 0 && errno == EINTR))
            if (length > 0)
                sim_text_append(log, buffer, (size_t)length);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        /* An older C library reports a missing program by the exit status. */
        if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
            error = ENOENT;
    }
    close(ends[0]);
    if (error != 0) {
        sim_text_add(log, "gpushare-sim: cannot run the C++ compiler '");
        sim_text_add(log, command[0]);
        sim_text_add(log, "': ");
        sim_text_add(log, strerror(error));
        sim_text_add(log,
                     ". Install g++ (Debian and Ubuntu: apt install g++) or set GPUSHARE_SIM_CXX to a compiler.\n");
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool write_file(const char *path, const char *data, size_t length)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return false;
    bool written = fwrite(data, 1, length, file) == length;
    return fclose(file) == 0 && written;
}

static bool read_file(const char *path, struct sim_text *text)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    char buffer[65536];
    size_t length;
    while ((length = fread(buffer, 1, sizeof buffer, file)) > 0)
        sim_text_append(text, buffer, length);
    bool complete = !ferror(file) && !text->failed;
    fclose(file);
    return complete;
}

static bool lower_names(struct program *program, const char *path)
{
    if (program->expressions == NULL)
        return true;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const void *const *addresses = handle == NULL ? NULL : dlsym(handle, "gpushare_sim_expressions");
    bool complete = addresses != NULL;
    for (struct expression *e = program->expressions; complete && e != NULL; e = e->next) {
        const void *address = *addresses++;
        Dl_info info;
        complete = dladdr(address, &info) != 0 && info.dli_saddr == address && info.dli_sname != NULL;
        if (complete) {
            free(e->lowered);
            e->lowered = strdup(info.dli_sname);
        }
    }
    if (handle != NULL)
        dlclose(handle);
    return complete;
}

/* A header's name may contain directories. A name that leads outside the directory is refused. */
static bool write_header(const char *directory, const char *name, const char *text)
{
    char path[4096];
    if (name[0] == '/' || strstr(name, "..") != NULL ||
        snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return false;
    for (char *slash = path + strlen(directory) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    return write_file(path, text, strlen(text));
}

static void remove_tree(const char *directory)
{
    char *const command[] = {"rm", "-rf", "--", (char *)directory, NULL};
    struct sim_text ignored = {NULL, 0, 0, false};
    run(command, &ignored);
    sim_text_clear(&ignored);
}

static nvrtcResult compile_in(struct program *program, const char *directory, struct arguments *options)
{
    char source_path[256], image_path[256], include[256];
    snprintf(source_path, sizeof source_path, "%s/source.cpp", directory);
    snprintf(image_path, sizeof image_path, "%s/module.so", directory);
    snprintf(include, sizeof include, "%s/include", directory);
    mkdir(include, 0700);
    struct sim_names kernels = {NULL, 0};
    struct sim_text source = {NULL, 0, 0, false};
    bool fibers = strstr(program->source, "__syncthreads") != NULL || strstr(program->source, "__syncwarp") != NULL;
    for (int i = 0; i < program->header_count; i++) {
        if (!write_header(include, program->header_names[i], program->headers[i])) {
            sim_text_add(&program->log, "gpushare-sim: cannot write the header ");
            sim_text_add(&program->log, program->header_names[i]);
            sim_text_add(&program->log, "\n");
        }
        fibers = fibers || strstr(program->headers[i], "__syncthreads") != NULL;
        sim_find_kernels(program->headers[i], &kernels);
    }
    sim_find_kernels(program->source, &kernels);
    sim_text_add(&source, fibers ? "#define GPUSHARE_SIM_FIBERS 1\n" : "#define GPUSHARE_SIM_FIBERS 0\n");
    sim_text_add(&source, abi_text);
    sim_text_add(&source, "\n");
    /* #pragma once only makes sense in an included file. */
    sim_text_add(&source, strstr(runtime_text, "#include"));
    sim_text_add(&source, "\n#line 1 \"");
    sim_text_add(&source, program->name);
    sim_text_add(&source, "\"\n");
    sim_add_source(&source, program->source);
    add_trailer(&source, program, &kernels);
    sim_names_free(&kernels);
    const char *compiler = getenv("GPUSHARE_SIM_CXX");
    struct arguments command = {.count = 0};
    argument(&command, "", compiler != NULL && compiler[0] != '\0' ? compiler : "g++");
    static const char *const fixed[] = {"-x",
                                        "c++",
                                        "-O2",
                                        "-shared",
                                        "-fPIC",
                                        "-fno-gnu-unique",
                                        "-fno-stack-protector",
                                        "-U_FORTIFY_SOURCE",
                                        "-ffp-contract=off",
                                        "-fno-strict-aliasing",
                                        "-Wno-attributes"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        argument(&command, "", fixed[i]);
    for (size_t i = 0; i < options->count; i++)
        argument(&command, "", options->items[i]);
    argument(&command, "-I", include);
    argument(&command, "-o", image_path);
    argument(&command, "", source_path);
    nvrtcResult result = NVRTC_SUCCESS;
    if (source.failed || !write_file(source_path, source.data, source.length)) {
        sim_text_add(&program->log, "gpushare-sim: cannot write to the temporary directory\n");
        result = NVRTC_ERROR_INTERNAL_ERROR;
    } else if (run(command.items, &program->log) != 0) {
        result = NVRTC_ERROR_COMPILATION;
    } else if (!read_file(image_path, &program->image)) {
        sim_text_add(&program->log, "gpushare-sim: the compiler did not write a module\n");
        result = NVRTC_ERROR_INTERNAL_ERROR;
    } else if (!lower_names(program, image_path)) {
        result = NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
    }
    sim_text_clear(&source);
    for (size_t i = 0; i < command.count; i++)
        free(command.items[i]);
    return result;
}

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    if (major == NULL || minor == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    if (count == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *count = (int)(sizeof architectures / sizeof architectures[0]);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int *out)
{
    if (out == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(out, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    static const char *const names[] = {"NVRTC_SUCCESS",
                                        "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                        "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM",
                                        "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION",
                                        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
                                        "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
                                        "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
                                        "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
                                        "NVRTC_ERROR_INTERNAL_ERROR"};
    return (size_t)result < sizeof names / sizeof names[0] ? names[result] : "NVRTC_ERROR unknown";
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *handle)
{
    if (handle == NULL || *handle == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    struct program *program = *handle;
    *handle = NULL;
    for (int i = 0; i < program->header_count; i++) {
        free(program->headers[i]);
        free(program->header_names[i]);
    }
    for (struct expression *e = program->expressions, *next; e != NULL; e = next) {
        next = e->next;
        free(e->text);
        free(e->lowered);
        free(e);
    }
    free(program->headers);
    free(program->header_names);
    free(program->source);
    free(program->name);
    sim_text_clear(&program->log);
    sim_text_clear(&program->image);
    free(program);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name, int header_count,
                                      const char *const *headers, const char *const *header_names)
{
    if (out == NULL || source == NULL || header_count < 0 ||
        (header_count > 0 && (headers == NULL || header_names == NULL)))
        return NVRTC_ERROR_INVALID_INPUT;
    struct program *program = calloc(1, sizeof *program);
    if (program == NULL)
        return NVRTC_ERROR_OUT_OF_MEMORY;
    program->last_expression = &program->expressions;
    program->source = strdup(source);
    program->name = strdup(name == NULL || name[0] == '\0' ? "default_program" : name);
    program->headers = calloc((size_t)header_count + 1, sizeof *program->headers);
    program->header_names = calloc((size_t)header_count + 1, sizeof *program->header_names);
    bool complete =
        program->source != NULL && program->name != NULL && program->headers != NULL && program->header_names != NULL;
    for (int i = 0; complete && i < header_count; i++) {
        program->headers[i] = strdup(headers[i]);
        program->header_names[i] = strdup(header_names[i]);
        program->header_count++;
        complete = program->headers[i] != NULL && program->header_names[i] != NULL;
    }
    if (!complete) {
        nvrtcDestroyProgram(&program);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    *out = program;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *text)
{
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (text == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    if (program->compiled)
        return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
    struct expression *expression = calloc(1, sizeof *expression);
    if (expression == NULL || (expression->text = strdup(text)) == NULL) {
        free(expression);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    *program->last_expression = expression;
    program->last_expression = &expression->next;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (count < 0 || (count > 0 && options == NULL))
        return NVRTC_ERROR_INVALID_INPUT;
    sim_text_clear(&program->log);
    sim_text_clear(&program->image);
    sim_text_append(&program->log, "", 0);
    program->compiled = true;
    const char *temporary = getenv("TMPDIR");
    char directory[200];
    snprintf(directory, sizeof directory, "%.150s/gpushare-sim-XXXXXX",
             temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    if (mkdtemp(directory) == NULL) {
        sim_text_add(&program->log, "gpushare-sim: cannot create a temporary directory: ");
        sim_text_add(&program->log, strerror(errno));
        sim_text_add(&program->log, "\n");
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    struct arguments translated = {.count = 0};
    translate(program, count, options, &translated);
    nvrtcResult result = compile_in(program, directory, &translated);
    for (size_t i = 0; i < translated.count; i++)
        free(translated.items[i]);
    remove_tree(directory);
    return result;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size)
{
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (size == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *size = program->log.length + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (log == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(log, program->log.data == NULL ? "" : program->log.data, program->log.length + 1);
    return NVRTC_SUCCESS;
}

static nvrtcResult image_size(nvrtcProgram program, size_t *size)
{
    if (program == NULL || program->image.length == 0)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (size == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *size = program->image.length;
    return NVRTC_SUCCESS;
}

static nvrtcResult image(nvrtcProgram program, char *out)
{
    if (program == NULL || program->image.length == 0)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (out == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(out, program->image.data, program->image.length);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size)
{
    nvrtcResult result = image_size(program, size);
    if (result == NVRTC_SUCCESS && program->virtual_architecture)
        *size = 0;
    return result;
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *out)
{
    return program != NULL && program->virtual_architecture ? NVRTC_ERROR_INVALID_PROGRAM : image(program, out);
}

/* There is no intermediate language: the PTX is the compiled module. */
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size)
{
    return image_size(program, size);
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *out)
{
    return image(program, out);
}

EXPORT nvrtcResult nvrtcGetLTOIRSize(nvrtcProgram program, size_t *size);
EXPORT nvrtcResult nvrtcGetLTOIRSize(nvrtcProgram program, size_t *size)
{
    (void)size;
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
}

EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *text, const char **lowered)
{
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (text == NULL || lowered == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    if (!program->compiled)
        return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
    for (struct expression *e = program->expressions; e != NULL; e = e->next) {
        if (strcmp(e->text, text) == 0 && e->lowered != NULL) {
            *lowered = e->lowered;
            return NVRTC_SUCCESS;
        }
    }
    return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}
