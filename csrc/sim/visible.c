/* SPDX-License-Identifier: BSD-3-Clause */
#include "visible.h"

#include "identity.h"
#include "segment/devices.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_named(const char *name, const struct sim_unit *unit, const char *entry, size_t length)
{
    if (isdigit((unsigned char)entry[0])) {
        char *end;
        unsigned long number = strtoul(entry, &end, 10);
        return end == entry + length && number == unit->gpu;
    }
    unsigned char uuid[16];
    char text[64];
    sim_unit_uuid(name, unit, uuid);
    sim_identity_text(uuid, unit->slice >= 0, text);
    return length > 4 && strncasecmp(text, entry, length) == 0;
}

static bool has(const unsigned *list, unsigned count, unsigned device)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i] == device)
            return true;
    return false;
}

bool sim_visible_choose(const char *name)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned all = sim_segment_devices(), seen[SIM_MAX_DEVICES], count = 0;
    while (list == NULL && count < all) {
        seen[count] = count;
        count++;
    }
    while (list != NULL && *list != '\0') {
        list += strspn(list, " ");
        size_t length = strcspn(list, ", "), skip = strcspn(list, ",");
        unsigned device = 0;
        while (device < all && !is_named(name, sim_segment_unit(device), list, length))
            device++;
        if (length == 0 || device == all || has(seen, count, device))
            break;
        seen[count++] = device;
        list += skip + (list[skip] == ',');
    }
    for (unsigned i = 0; i < count; i++) {
        if (sim_segment_unit(seen[i])->slice < 0)
            continue;
        seen[0] = seen[i];
        count = 1;
    }
    sim_segment_choose(seen, count);
    return count != 0;
}
