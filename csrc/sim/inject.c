/* SPDX-License-Identifier: BSD-3-Clause */
#include "inject.h"

#include "base/clock.h"
#include "context.h"
#include "counters.h"
#include "device.h"
#include "linger.h"

#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RULES 32
#define MAX_NAME 64
#define LOOK_NS 2000000 /* how often a hanging call checks whether the rules have changed */

struct rule {
    char function[MAX_NAME]; /* without version; a prefix if `prefix` is set */
    bool prefix;
    char thread[16];    /* only for threads whose name begins like this; "": for all */
    bool other_threads; /* only for the other threads */
    uint64_t number;    /* 0: every call */
    bool onwards;
    double probability;
    bool has_result;
    CUresult result;
    enum sim_effect effect;
    uint64_t delay_ms;
    uint64_t calls;
};

extern const struct sim_site sites_begin[] __asm__("__start_sim_sites") __attribute__((visibility("hidden")));
extern const struct sim_site sites_end[] __asm__("__stop_sim_sites") __attribute__((visibility("hidden")));

bool sim_injecting;
__thread bool sim_lingers __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[MAX_RULES];
static unsigned rule_count;
static unsigned settings; /* number of times the rules were set */
static uint64_t seed;
static __thread CUresult later __attribute__((tls_model("initial-exec")));

static bool ends_with(const char *name, size_t length, const char *suffix)
{
    size_t size = strlen(suffix);
    return length > size && memcmp(name + length - size, suffix, size) == 0;
}

/* The length of a name without variant and version. */
static size_t plain_length(const char *name)
{
    size_t length = strlen(name);
    if (ends_with(name, length, "_ptsz") || ends_with(name, length, "_ptds"))
        length -= 5;
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && isdigit((unsigned char)name[length - 1]))
        length -= 3;
    return length;
}

static bool of_thread(const struct rule *rule)
{
    char name[16] = "";
    if (rule->thread[0] == '\0')
        return true;
    pthread_getname_np(pthread_self(), name, sizeof name);
    return (strncmp(name, rule->thread, strlen(rule->thread)) == 0) != rule->other_threads;
}

static bool submits(const char *function)
{
    static const char *const beginnings[] = {
        "cuMemcpy", "cuMemset", "cuMemPrefetch", "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuGraphLaunch"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (strncmp(function, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

static bool matches(const struct rule *rule, const char *function)
{
    size_t length = plain_length(function), wanted = strlen(rule->function);
    if (rule->effect == SIM_LATER && !submits(function))
        return false;
    if (rule->effect == SIM_FORGET && strcmp(function, "cuCheckpointProcessRestore") != 0)
        return false;
    return (rule->prefix ? length >= wanted : length == wanted) && memcmp(rule->function, function, wanted) == 0;
}

static CUresult usual_result(const char *function)
{
    static const char *const beginnings[] = {
        "cuMemCreate",           "cuMemAlloc",      "cuMemHostAlloc", "cuMemHostRegister",  "cuMemMap",
        "cuMemSetAccess",        "cuMemAddressRes", "cuStreamCreate", "cuEventCreate",      "cuCtxCreate",
        "cuDevicePrimary",       "cuLaunch",        "cuGraphLaunch",  "cuGraphInstantiate", "cuGraphAddMemAlloc",
        "cuMemPoolCreate",       "cuModuleLoad",    "cuLibraryLoad",  "cuArrayCreate",      "cuArray3DCreate",
        "cuMipmappedArrayCreate"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (strncmp(function, beginnings[i], strlen(beginnings[i])) == 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_ERROR_UNKNOWN;
}

/* A number in [0, 1) that depends only on the seed, the rule and the call (splitmix64). */
static double chance(unsigned rule, uint64_t call)
{
    uint64_t x = seed + UINT64_C(0x9e3779b97f4a7c15) * (call + ((uint64_t)rule << 40));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* Finds the first rule that applies to the call. False: there is none. */
static bool take(const char *function, struct rule *taken)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!matches(rule, function) || !of_thread(rule))
            continue;
        uint64_t call = ++rule->calls;
        bool selected = rule->number == 0 || (rule->onwards ? call >= rule->number : call == rule->number);
        if (!selected || found || chance(i, call) >= rule->probability)
            continue;
        *taken = *rule;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void hang(void)
{
    unsigned before = __atomic_load_n(&settings, __ATOMIC_RELAXED);
    while (__atomic_load_n(&settings, __ATOMIC_RELAXED) == before)
        sim_sleep_until(sim_now() + LOOK_NS);
}

void sim_linger(void)
{
    sim_lingers = false;
    /* Comes last: a test that sees it knows that the function has done its work. */
    __atomic_add_fetch(&sim_counters_now.injected, 1, __ATOMIC_RELAXED);
    hang();
}

CUresult sim_inject_anywhere(const char *function, enum sim_effect *effect)
{
    struct rule rule = {.effect = SIM_AT_ONCE};
    *effect = SIM_AT_ONCE;
    if (!take(function, &rule))
        return CUDA_SUCCESS;
    if (rule.effect != SIM_LINGER)
        __atomic_add_fetch(&sim_counters_now.injected, 1, __ATOMIC_RELAXED);
    *effect = rule.effect;
    if (rule.effect == SIM_DELAY)
        sim_sleep_until(sim_now() + rule.delay_ms * UINT64_C(1000000));
    else if (rule.effect == SIM_HANG)
        hang();
    else if (rule.effect == SIM_LINGER)
        sim_lingers = true;
    else if (rule.effect == SIM_DIE)
        kill(getpid(), SIGKILL);
    if (rule.has_result)
        return rule.result;
    return rule.effect <= SIM_FATAL ? usual_result(function) : CUDA_SUCCESS;
}

CUresult sim_inject(const char *function)
{
    later = CUDA_SUCCESS;
    if (sim_entry() != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    enum sim_effect effect;
    CUresult result = sim_inject_anywhere(function, &effect);
    if (effect == SIM_LATER) {
        later = result;
        return CUDA_SUCCESS;
    }
    if (effect == SIM_FATAL && sim_context_current != NULL)
        sim_context_fail(sim_context_current, result);
    return result;
}

CUresult sim_inject_take_later(void)
{
    CUresult result = later;
    later = CUDA_SUCCESS;
    return result;
}

/* Ends the text at the mark, and returns what follows it, or NULL. */
static char *cut(char *text, char mark)
{
    char *at = strchr(text, mark);
    if (at != NULL)
        *at++ = '\0';
    return at;
}

static bool parse_effect(const char *text, struct rule *rule)
{
    static const struct {
        const char *name;
        enum sim_effect effect;
    } effects[] = {{"later", SIM_LATER},   {"fatal", SIM_FATAL}, {"hang", SIM_HANG},
                   {"linger", SIM_LINGER}, {"die", SIM_DIE},     {"forget", SIM_FORGET}};
    for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++) {
        if (strcmp(text, effects[i].name) != 0)
            continue;
        rule->effect = effects[i].effect;
        return true;
    }
    char *end;
    rule->effect = SIM_DELAY;
    rule->delay_ms = strtoull(text, &end, 10);
    return isdigit((unsigned char)text[0]) && rule->delay_ms <= 3600000 && strcmp(end, "ms") == 0;
}

/* Returns NULL, or what is wrong with the rule. */
static const char *parse_rule(char *text, struct rule *rule)
{
    *rule = (struct rule){.probability = 1};
    char *effect = cut(text, '/'), *result = cut(text, '='), *probability = cut(text, '@'), *number = cut(text, ':'),
         *thread = cut(text, '%');
    if (effect != NULL && !parse_effect(effect, rule))
        return "use one of these after '/': 'later', 'fatal', 'hang', 'linger', 'die', 'forget' or milliseconds, for "
               "example 200ms";
    rule->has_result = result != NULL;
    if (result != NULL && (!sim_result_by_name(result, &rule->result) || rule->result == CUDA_SUCCESS))
        return "use the name of an error after '=', for example OUT_OF_MEMORY";
    char *end;
    if (probability != NULL) {
        rule->probability = strtod(probability, &end);
        if (!isdigit((unsigned char)probability[0]) || *end != '\0' || !(rule->probability <= 1))
            return "use a probability from 0 to 1 after '@'";
    }
    if (number != NULL) {
        rule->number = strtoull(number, &end, 10);
        rule->onwards = *end == '+';
        if (!isdigit((unsigned char)number[0]) || rule->number == 0 || end[rule->onwards] != '\0')
            return "use the number of the call that fails (from 1) after ':', and '+' if all later calls fail, too";
    }
    if (thread != NULL) {
        rule->other_threads = thread[0] == '!';
        thread += rule->other_threads;
        if (thread[0] == '\0' || strlen(thread) >= sizeof rule->thread)
            return "use the beginning of a thread's name after '%', or '!' and the beginning of the names to leave out";
        strcpy(rule->thread, thread);
    }
    size_t length = strlen(text);
    rule->prefix = length > 0 && text[length - 1] == '*';
    length = rule->prefix ? length - 1 : plain_length(text);
    if (length >= sizeof rule->function)
        return "this function cannot fail";
    memcpy(rule->function, text, length);
    for (const struct sim_site *site = sites_begin; site < sites_end; site++)
        if (matches(rule, site->function))
            return NULL;
    return rule->effect == SIM_LATER    ? "this function does not submit work that can fail later"
           : rule->effect == SIM_FORGET ? "'forget' is only possible for cuCheckpointProcessRestore"
                                        : "this function cannot fail";
}

static bool set(const char *text, const char *name)
{
    struct rule parsed[MAX_RULES];
    unsigned count = 0;
    char *copy = strdup(text != NULL ? text : ""), *rest = copy;
    if (copy == NULL)
        return false;
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        char whole[256];
        if (one[0] == '\0' && count == 0 && rest == NULL)
            break;
        snprintf(whole, sizeof whole, "%s", one);
        const char *wrong = count == MAX_RULES ? "there can be at most 32 rules" : parse_rule(one, &parsed[count]);
        if (wrong != NULL) {
            fprintf(stderr, "gpushare-sim: %s: rule '%s' is malformed: %s\n", name, whole, wrong);
            free(copy);
            return false;
        }
        count++;
    }
    free(copy);
    pthread_mutex_lock(&lock);
    memcpy(rules, parsed, count * sizeof *rules);
    rule_count = count;
    __atomic_add_fetch(&settings, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&sim_injecting, count > 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return true;
}

int gpushare_sim_fail(const char *text)
{
    return set(text, "gpushare_sim_fail") ? 0 : -1;
}

bool sim_inject_init(const struct sim_config *config)
{
    static bool read;
    static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
    const char *text = getenv("GPUSHARE_SIM_FAIL");
    pthread_mutex_lock(&reading);
    bool first = !read;
    if (first)
        seed = config->fail_seed;
    bool valid = !first || text == NULL || text[0] == '\0' || set(text, "GPUSHARE_SIM_FAIL");
    read = valid;
    pthread_mutex_unlock(&reading);
    return valid;
}
