/* SPDX-License-Identifier: BSD-3-Clause */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool reject(const char *variable, const char *value, const char *wanted)
{
    fprintf(stderr, "gpushare-sim: %s='%s' is malformed: give %s\n", variable, value, wanted);
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

static bool read_capability(struct sim_config *config)
{
    const char *value = getenv("GPUSHARE_SIM_COMPUTE_CAPABILITY");
    if (value == NULL || value[0] == '\0')
        return true;
    unsigned major, minor;
    int used = 0;
    if (!isdigit((unsigned char)value[0]) || sscanf(value, "%2u.%1u%n", &major, &minor, &used) != 2 ||
        value[used] != '\0')
        return reject("GPUSHARE_SIM_COMPUTE_CAPABILITY", value, "major.minor, for example 9.0");
    config->major = major;
    config->minor = minor;
    return true;
}

bool sim_config_read(struct sim_config *config)
{
    *config = (struct sim_config){.devices = 1,
                                  .memory = UINT64_C(2) << 30,
                                  .bandwidth = UINT64_C(8000000000),
                                  .fault_bandwidth = UINT64_C(500000000),
                                  .context = UINT64_C(16) << 20,
                                  .major = 9};
    const char *bytes = "bytes, with or without KiB, MiB or GiB";
    const char *rate = "bytes per second, with or without KiB, MiB or GiB";
    const uint64_t most = UINT64_C(1) << 46;
    bool valid =
        read_name(config) && read_capability(config) &&
        read_number("GPUSHARE_SIM_DEVICES", false, 1, SIM_MAX_DEVICES, "a number from 1 to 16", &config->devices) &&
        read_number("GPUSHARE_SIM_MEMORY", true, UINT64_C(1) << 20, most, bytes, &config->memory) &&
        read_number("GPUSHARE_SIM_BANDWIDTH", true, 1, most, rate, &config->bandwidth) &&
        read_number("GPUSHARE_SIM_PAGEABLE_BANDWIDTH", true, 1, most, rate, &config->pageable_bandwidth) &&
        read_number("GPUSHARE_SIM_PIN_BANDWIDTH", true, 0, most, rate, &config->pin_bandwidth) &&
        read_number("GPUSHARE_SIM_FAULT_BANDWIDTH", true, 1, most, rate, &config->fault_bandwidth) &&
        read_number("GPUSHARE_SIM_KERNEL_NS", false, 0, most, "nanoseconds", &config->kernel_ns) &&
        read_number("GPUSHARE_SIM_CONTEXT", true, 0, most, bytes, &config->context) &&
        read_number("GPUSHARE_SIM_CONTEXT_GROWTH", true, 0, most, bytes, &config->context_growth) &&
        read_number("GPUSHARE_SIM_FORK_HOLDS", false, 0, 1, "0 or 1", &config->fork_holds) &&
        read_number("GPUSHARE_SIM_FAIL_SEED", false, 0, UINT64_MAX, "a number", &config->fail_seed) &&
        read_number("GPUSHARE_SIM_TEARDOWN_MS", false, 0, 3600000, "milliseconds, at most 3600000",
                    &config->teardown_ms) &&
        read_number("GPUSHARE_SIM_INSTANT", false, 0, 1, "0 or 1", &config->instant) &&
        read_number("GPUSHARE_SIM_ABORT_ON_FAULT", false, 0, 1, "0 or 1", &config->abort_on_fault);
    if (config->pageable_bandwidth == 0)
        config->pageable_bandwidth = config->bandwidth;
    return valid;
}
