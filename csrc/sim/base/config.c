/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool reject(const char *variable, const char *value, const char *wanted)
{
    fprintf(stderr, "gpushare-sim: %s='%s' is malformed. Use %s\n", variable, value, wanted);
    return false;
}

static bool parse_number(const char *text, bool size, uint64_t *out)
{
    static const struct {
        const char *suffix;
        unsigned shift;
    } suffixes[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    for (size_t i = 0; i < (size ? sizeof suffixes / sizeof suffixes[0] : 1); i++) {
        if (strcmp(end, suffixes[i].suffix) != 0)
            continue;
        if (number > UINT64_MAX >> suffixes[i].shift)
            return false;
        *out = (uint64_t)number << suffixes[i].shift;
        return true;
    }
    return false;
}

static bool read_number(const char *variable, bool size, uint64_t least, uint64_t most, const char *wanted,
                        uint64_t *out)
{
    const char *value = getenv(variable);
    if (value == NULL || value[0] == '\0')
        return true;
    uint64_t number;
    if (!parse_number(value, size, &number) || number < least || number > most)
        return reject(variable, value, wanted);
    *out = number;
    return true;
}

static bool read_name(struct sim_config *config)
{
    const char *value = getenv("GPUSHARE_SIM_NAME");
    if (value == NULL || value[0] == '\0') {
        snprintf(config->name, sizeof config->name, "%u", (unsigned)getuid());
        return true;
    }
    bool valid = strlen(value) < sizeof config->name;
    for (const char *c = value; valid && *c != '\0'; c++)
        valid = isalnum((unsigned char)*c) || *c == '-' || *c == '_' || *c == '.';
    if (!valid)
        return reject("GPUSHARE_SIM_NAME", value, "1 to 63 letters, digits, '-', '_' or '.'");
    snprintf(config->name, sizeof config->name, "%s", value);
    return true;
}

/* The entry of a list for this GPU, or the last entry. */
static void list_entry(const char *list, unsigned gpu, char *entry, size_t size)
{
    const char *end = strchr(list, ',');
    for (; gpu > 0 && end != NULL; gpu--) {
        list = end + 1;
        end = strchr(list, ',');
    }
    size_t length = end != NULL ? (size_t)(end - list) : strlen(list);
    snprintf(entry, size, "%.*s", (int)(length < size ? length : size - 1), list);
}

static bool parse_capability(const char *text, struct sim_unit *unit)
{
    int used = 0;
    return isdigit((unsigned char)text[0]) && sscanf(text, "%2u.%1u%n", &unit->major, &unit->minor, &used) == 2 &&
           text[used] == '\0';
}

static const char *or_default(const char *variable, const char *otherwise)
{
    const char *value = getenv(variable);
    return value == NULL || value[0] == '\0' ? otherwise : value;
}

/* Slices share their GPU's memory in equal parts, in multiples of the allocation granularity. */
static bool add_units(struct sim_config *config, const struct sim_unit *whole, uint64_t slices)
{
    const uint64_t multiple = UINT64_C(2) << 20;
    for (uint64_t i = 0; i < (slices != 0 ? slices : 1); i++) {
        if (config->devices == SIM_MAX_DEVICES)
            return false;
        struct sim_unit *unit = &config->unit[config->devices++];
        *unit = *whole;
        unit->slice = slices != 0 ? (int)i : -1;
        if (slices != 0)
            unit->memory = whole->memory / slices / multiple * multiple;
    }
    return true;
}

static bool read_units(struct sim_config *config)
{
    const char *memory = or_default("GPUSHARE_SIM_MEMORY", "2GiB");
    const char *capability = or_default("GPUSHARE_SIM_COMPUTE_CAPABILITY", "9.0");
    const char *model = or_default("GPUSHARE_SIM_MODEL", SIM_DEVICE_NAME);
    const char *mig = or_default("GPUSHARE_SIM_MIG", "0");
    char entry[64];
    for (unsigned gpu = 0; gpu < config->gpus; gpu++) {
        struct sim_unit whole = {.gpu = gpu};
        uint64_t slices;
        list_entry(memory, gpu, entry, sizeof entry);
        if (!parse_number(entry, true, &whole.memory) || whole.memory < UINT64_C(1) << 20 ||
            whole.memory > UINT64_C(1) << 46)
            return reject("GPUSHARE_SIM_MEMORY", memory, "bytes, with or without KiB, MiB or GiB, or a list of them");
        list_entry(capability, gpu, entry, sizeof entry);
        if (!parse_capability(entry, &whole))
            return reject("GPUSHARE_SIM_COMPUTE_CAPABILITY", capability, "major.minor, for example 9.0, or a list");
        list_entry(model, gpu, whole.model, sizeof whole.model);
        list_entry(mig, gpu, entry, sizeof entry);
        if (!parse_number(entry, false, &slices) || slices > 7)
            return reject("GPUSHARE_SIM_MIG", mig, "a number from 0 to 7, or a list of them");
        if (!add_units(config, &whole, slices))
            return reject("GPUSHARE_SIM_MIG", mig, "16 GPUs and slices in all, at most");
    }
    return true;
}

static int cuda_of(unsigned major)
{
    static const struct {
        unsigned major;
        int cuda;
    } versions[] = {{590, 13010}, {580, 13000}, {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060},
                    {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010}};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (major >= versions[i].major)
            return versions[i].cuda;
    return 12000;
}

bool sim_config_driver(struct sim_driver *driver)
{
    const char *text = or_default("GPUSHARE_SIM_DRIVER_VERSION", "580");
    size_t digits = strspn(text, "0123456789"), length = strlen(text);
    bool valid = digits == 3 && text[0] != '0' && (text[digits] == '\0' || text[digits] == '.') && length < 24;
    if (!valid)
        text = "580";
    driver->major = (unsigned)strtoul(text, NULL, 10);
    driver->cuda = cuda_of(driver->major);
    snprintf(driver->text, sizeof driver->text, strchr(text, '.') != NULL ? "%s" : "%s.00.sim", text);
    return valid;
}

static bool read_driver(struct sim_config *config)
{
    const char *variable = "GPUSHARE_SIM_DRIVER_VERSION";
    return sim_config_driver(&config->driver) || reject(variable, getenv(variable), "a version, for example 580.65.06");
}

bool sim_config_read(struct sim_config *config)
{
    *config = (struct sim_config){.gpus = 1,
                                  .bandwidth = UINT64_C(8000000000),
                                  .memory_bandwidth = UINT64_C(500000000000),
                                  .digest_ignores = SIM_DIGEST_IGNORES_NOTHING,
                                  .fault_bandwidth = UINT64_C(500000000),
                                  .context = UINT64_C(16) << 20,
                                  .checkpoint_left = UINT64_C(4) << 20,
                                  .power_bare = 72,
                                  .power_context = 121,
                                  .power_busy = 700,
                                  .energy = 2};
    const char *bytes = "bytes, with or without KiB, MiB or GiB";
    const char *rate = "bytes per second, with or without KiB, MiB or GiB";
    const char *watts = "watts, at most 10000";
    const uint64_t most = UINT64_C(1) << 46;
    bool valid =
        read_name(config) && read_driver(config) &&
        read_number("GPUSHARE_SIM_DEVICES", false, 1, SIM_MAX_DEVICES, "a number from 1 to 16", &config->gpus) &&
        read_units(config) && read_number("GPUSHARE_SIM_BANDWIDTH", true, 1, most, rate, &config->bandwidth) &&
        read_number("GPUSHARE_SIM_PAGEABLE_BANDWIDTH", true, 1, most, rate, &config->pageable_bandwidth) &&
        read_number("GPUSHARE_SIM_PAGE_LOCK_BANDWIDTH", true, 0, most, rate, &config->page_lock_bandwidth) &&
        read_number("GPUSHARE_SIM_PAGE_UNLOCK_BANDWIDTH", true, 0, most, rate, &config->page_unlock_bandwidth) &&
        read_number("GPUSHARE_SIM_CHECKPOINT_LOCKED_BANDWIDTH", true, 0, most, rate,
                    &config->checkpoint_locked_bandwidth) &&
        read_number("GPUSHARE_SIM_MEMORY_BANDWIDTH", true, 1, most, rate, &config->memory_bandwidth) &&
        read_number("GPUSHARE_SIM_FAULT_BANDWIDTH", true, 1, most, rate, &config->fault_bandwidth) &&
        read_number("GPUSHARE_SIM_KERNEL_NS", false, 0, most, "nanoseconds", &config->kernel_ns) &&
        read_number("GPUSHARE_SIM_RESERVED", true, 0, most, bytes, &config->reserved) &&
        read_number("GPUSHARE_SIM_CONTEXT", true, 0, most, bytes, &config->context) &&
        read_number("GPUSHARE_SIM_CONTEXT_GROWTH", true, 0, most, bytes, &config->context_growth) &&
        read_number("GPUSHARE_SIM_CODE", true, 0, most, bytes, &config->code) &&
        read_number("GPUSHARE_SIM_FORK_HOLDS", false, 0, 1, "0 or 1", &config->fork_holds) &&
        read_number("GPUSHARE_SIM_FAIL_SEED", false, 0, UINT64_MAX, "a number", &config->fail_seed) &&
        read_number("GPUSHARE_SIM_DIGEST_IGNORES", false, 0, 2097151, "a number from 0 to 2097151",
                    &config->digest_ignores) &&
        read_number("GPUSHARE_SIM_TEARDOWN_MS", false, 0, 3600000, "milliseconds, at most 3600000",
                    &config->teardown_ms) &&
        read_number("GPUSHARE_SIM_CHECKPOINT_MS", false, 0, 3600000, "milliseconds, at most 3600000",
                    &config->checkpoint_ms) &&
        read_number("GPUSHARE_SIM_RESTORE_MS", false, 0, 3600000, "milliseconds, at most 3600000",
                    &config->restore_ms) &&
        read_number("GPUSHARE_SIM_CHECKPOINT_LEFT", true, 0, most, bytes, &config->checkpoint_left) &&
        read_number("GPUSHARE_SIM_POWER_BARE", false, 0, 10000, watts, &config->power_bare) &&
        read_number("GPUSHARE_SIM_POWER_CONTEXT", false, 0, 10000, watts, &config->power_context) &&
        read_number("GPUSHARE_SIM_POWER_BUSY", false, 0, 10000, watts, &config->power_busy) &&
        read_number("GPUSHARE_SIM_ENERGY", false, 0, 2, "0, 1 or 2", &config->energy) &&
        read_number("GPUSHARE_SIM_STRICT", false, 0, 1, "0 or 1", &config->strict) &&
        read_number("GPUSHARE_SIM_REUSE", false, 0, 1, "0 or 1", &config->reuse) &&
        read_number("GPUSHARE_SIM_INSTANT", false, 0, 1, "0 or 1", &config->instant) &&
        read_number("GPUSHARE_SIM_ABORT_ON_FAULT", false, 0, 1, "0 or 1", &config->abort_on_fault);
    if (config->pageable_bandwidth == 0)
        config->pageable_bandwidth = config->bandwidth;
    return valid;
}
