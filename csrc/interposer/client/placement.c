/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/placement.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "client/connection.h"
#include "loader/machine.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define VISIBLE "CUDA_VISIBLE_DEVICES"

/* How long the first cuInit waits for a scheduler that is starting. */
static const uint64_t patience = 2000 * GS_MILLISECOND;

enum { MOST = GPUSHARE_MAX_PLACES, LIST_ROOM = MOST * GS_UUID_TEXT };

static struct {
    struct gs_mutex lock;
    bool done;
    bool changed; /* VISIBLE has the interposer's value; its value was `before` (NULL: unset) */
    char *before;
    struct gs_place order; /* gpu_count is 0 if no scheduler was asked */
} placement = {.lock = GS_MUTEX(GS_RANK_PLACEMENT)};

/* Some of the machine's devices in order, as indexes into the machine's list. */
struct choice {
    unsigned count;
    unsigned at[MOST];
};

static bool has(const struct choice *choice, unsigned at)
{
    for (unsigned i = 0; i < choice->count; i++)
        if (choice->at[i] == at)
            return true;
    return false;
}

/* --- Lists of devices --- */

/* Returns the next entry of a list, and advances the list past it. False at the end. */
static bool next_entry(const char **list, char entry[GS_UUID_TEXT])
{
    const char *at = *list + strspn(*list, " ");
    size_t length = strcspn(at, ", "), skip = strcspn(at, ",");
    if (length == 0 || length >= GS_UUID_TEXT)
        return false;
    memcpy(entry, at, length);
    entry[length] = '\0';
    *list = at + skip + (at[skip] == ',');
    return true;
}

static bool is_number(const char *entry, unsigned *number)
{
    char *end;
    if (!isdigit((unsigned char)entry[0]))
        return false;
    unsigned long value = strtoul(entry, &end, 10);
    *number = (unsigned)value;
    return *end == '\0' && value < 4096;
}

/* Whether a list contains the number of a device. */
static bool has_numbers(const char *list)
{
    char entry[GS_UUID_TEXT];
    unsigned number;
    while (next_entry(&list, entry))
        if (is_number(entry, &number))
            return true;
    return false;
}

static bool is_named(const struct gs_unit *unit, const char *entry)
{
    unsigned number;
    if (is_number(entry, &number))
        return number == unit->gpu;
    size_t length = strlen(entry);
    return length > 4 && (strncasecmp(unit->text, entry, length) == 0 || strncasecmp(unit->whole, entry, length) == 0);
}

/*
 * The devices that a list names. As in CUDA, the list ends at the first entry that names no device. A GPU with slices
 * stands for its slices.
 */
static struct choice read_list(const char *list, const struct gs_unit *units, unsigned count)
{
    struct choice choice = {0};
    char entry[GS_UUID_TEXT];
    while (next_entry(&list, entry)) {
        bool found = false;
        for (unsigned i = 0; i < count; i++) {
            if (!is_named(&units[i], entry) || has(&choice, i))
                continue;
            choice.at[choice.count++] = i;
            found = true;
        }
        if (!found)
            break;
    }
    return choice;
}

static void append(char *list, const char *entry)
{
    size_t used = strlen(list);
    snprintf(list + used, LIST_ROOM - used, "%s%s", used != 0 ? "," : "", entry);
}

/* CUDA uses at most one slice in a process, and no GPU in addition to it. */
static void write_list(const struct choice *order, const struct gs_unit *units, char *list)
{
    for (unsigned i = 0; i < order->count; i++)
        if (i == 0 || (!units[order->at[0]].slice && !units[order->at[i]].slice))
            append(list, units[order->at[i]].text);
}

/* --- Asking the scheduler --- */

enum answer {
    ANSWERED,
    NOT_YET,
    NEVER /* asking again would change nothing */
};

/*
 * The scheduler may be overloaded, or about to receive the ticket. Errors that will not go away are reported with
 * HELLO.
 */
static enum answer refusal(uint32_t code, enum gs_ticket ticket)
{
    bool awaited = code == EACCES && (ticket == GS_TICKET_MISSING || ticket == GS_TICKET_SENT);
    return awaited || code == EAGAIN || code == ETIMEDOUT ? NOT_YET : NEVER;
}

static enum answer await_placed(int fd, enum gs_ticket ticket, uint64_t deadline, struct gpushare_placed *placed,
                                uint8_t gpus[MOST][16])
{
    struct gs_inbox *inbox = calloc(1, sizeof(*inbox));
    enum answer answer = NOT_YET;
    if (inbox == NULL)
        return answer;
    inbox->descriptor = -1;
    for (uint64_t now; answer == NOT_YET && (now = gs_now_ns()) < deadline;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (poll(&readable, 1, (int)((deadline - now) / GS_MILLISECOND) + 1) <= 0 || !gs_receive(fd, inbox))
            break;
        struct gpushare_header header;
        const void *body;
        enum gs_frame frame = gs_next_frame(inbox, &header, &body);
        if (frame == GS_FRAME_NONE)
            continue;
        size_t size = header.length - sizeof(header);
        if (frame == GS_FRAME_WHOLE && header.type == GPUSHARE_REFUSED && size == sizeof(struct gpushare_refused)) {
            answer = refusal(((const struct gpushare_refused *)body)->code, ticket);
            break;
        }
        if (frame == GS_FRAME_BAD || header.type != GPUSHARE_PLACED || size < sizeof(*placed))
            break;
        memcpy(placed, body, sizeof(*placed));
        if (placed->gpu_count > MOST || size != sizeof(*placed) + placed->gpu_count * sizeof(gpus[0]))
            break;
        memcpy(gpus, (const char *)body + sizeof(*placed), placed->gpu_count * sizeof(gpus[0]));
        answer = ANSWERED;
    }
    gs_inbox_clear(inbox);
    free(inbox);
    return answer;
}

static enum answer ask_once(const char *path, const struct gs_place *place, uint64_t deadline,
                            struct gpushare_placed *placed, uint8_t gpus[MOST][16])
{
    int fd = gs_connect(path);
    if (fd < 0)
        return fd == -EACCES ? NEVER : NOT_YET;
    enum answer answer = NEVER;
    enum gs_ticket ticket = gs_present_ticket(fd);
    if (ticket != GS_TICKET_BAD) {
        /* If the send fails, the scheduler may have sent the reason before it closed the connection. */
        gs_send(fd, GPUSHARE_PLACE, place, sizeof(place->place) + place->place.gpu_count * sizeof(place->gpus[0]));
        answer = await_placed(fd, ticket, deadline, placed, gpus);
    }
    close(fd);
    return answer;
}

/*
 * Puts `choice` into the order of the Jupyter kernel. *known: the order was already known. False if no scheduler
 * answers.
 */
static bool ask(struct choice *choice, const struct gs_unit *units, enum gpushare_keep keep, bool *known)
{
    const char *path = getenv("GPUSHARE_SOCKET"), *group = getenv("GPUSHARE_GROUP");
    struct gs_place *place = &placement.order;
    memset(place, 0, sizeof(*place));
    place->place =
        (struct gpushare_place){.version = GPUSHARE_PROTOCOL_VERSION, .gpu_count = choice->count, .keep = keep};
    if (group != NULL && *group != '\0')
        snprintf(place->place.group, sizeof(place->place.group), "%s", group);
    else
        snprintf(place->place.group, sizeof(place->place.group), "pid-%d", (int)getpid());
    for (unsigned i = 0; i < choice->count; i++)
        memcpy(place->gpus[i], units[choice->at[i]].uuid, sizeof(place->gpus[i]));

    uint64_t deadline = gs_now_ns() + patience;
    struct gpushare_placed placed;
    uint8_t gpus[MOST][16];
    for (enum answer answer; (answer = ask_once(path, place, deadline, &placed, gpus)) != ANSWERED;) {
        if (answer == NEVER || gs_now_ns() >= deadline) {
            place->place.gpu_count = 0;
            return false;
        }
        usleep(20000);
    }
    *known = placed.known != 0;
    struct choice order = {0};
    for (unsigned i = 0; i < placed.gpu_count; i++)
        for (unsigned j = 0; j < choice->count; j++)
            if (memcmp(gpus[i], units[choice->at[j]].uuid, sizeof(gpus[i])) == 0 && !has(&order, choice->at[j]))
                order.at[order.count++] = choice->at[j];
    if (order.count != choice->count) {
        place->place.gpu_count = 0;
        return false;
    }
    *choice = order;
    for (unsigned i = 0; i < order.count; i++)
        memcpy(place->gpus[i], units[order.at[i]].uuid, sizeof(place->gpus[i]));
    place->place.keep = GPUSHARE_KEEP_IT;
    return true;
}

/* --- Choosing --- */

/*
 * Which of the Jupyter kernel's GPUs a program means by a number. If the GPUs were given as numbers, it is the GPU with
 * that number; otherwise, it is an index. False: there is no such GPU.
 */
static bool place_of(unsigned number, const char *given, const struct choice *order, unsigned *place)
{
    char entry[GS_UUID_TEXT];
    unsigned at = 0, other;
    bool apart = true; /* no given number could be an index */
    while (given != NULL && next_entry(&given, entry)) {
        if (is_number(entry, &other)) {
            if (other == number && at < order->count) {
                *place = at;
                return true;
            }
            apart = apart && other >= order->count;
        }
        at++;
    }
    *place = number;
    return apart && number < order->count;
}

static void translate(const char *list, const char *given, const struct choice *order, const struct gs_unit *units,
                      char *translated)
{
    const char *whole = list;
    char entry[GS_UUID_TEXT];
    unsigned number, place;
    while (next_entry(&list, entry)) {
        if (!is_number(entry, &number)) {
            append(translated, entry);
        } else if (place_of(number, given, order, &place)) {
            append(translated, units[order->at[place]].text);
        } else {
            gs_print(VISIBLE "=%s: this kernel has no GPU with the number %u%s%s", whole, number,
                     given != NULL ? "; its GPUs are " : "", given != NULL ? given : "");
            break;
        }
    }
}

static bool equals(const char *one, const char *other)
{
    return one == NULL || other == NULL ? one == other : strcmp(one, other) == 0;
}

static bool is_wanted(void)
{
    const char *place = getenv("GPUSHARE_PLACE"), *disable = getenv("GPUSHARE_DISABLE");
    const char *path = getenv("GPUSHARE_SOCKET");
    return path != NULL && *path != '\0' && !(place != NULL && strcmp(place, "0") == 0) &&
           !(disable != NULL && strcmp(disable, "1") == 0);
}

/* Writes the list for the driver. False: the driver's own list is right. */
static bool choose(char *list)
{
    const char *given = getenv("GPUSHARE_VISIBLE_DEVICES"), *wished = getenv(VISIBLE);
    const char *order = getenv("CUDA_DEVICE_ORDER");
    bool own = !equals(given, wished), alike, known;
    /* The list has UUIDs only, or is empty: there is nothing to choose. */
    if (!is_wanted() || (own && (wished == NULL || !has_numbers(wished))))
        return false;
    struct gs_unit *units = calloc(MOST, sizeof(*units));
    unsigned count = units != NULL ? gs_machine_list(units, &alike) : 0;
    struct choice choice = {0};
    if (given != NULL && count != 0)
        choice = read_list(given, units, count);
    for (unsigned i = 0; given == NULL && i < count; i++)
        choice.at[choice.count++] = i;
    /* CUDA numbers GPUs of different models by speed, which NVML does not report. */
    bool counts = (alike && count != 0) || (order != NULL && strcmp(order, "PCI_BUS_ID") == 0);
    bool readable = given == NULL || counts || !has_numbers(given);
    bool chosen = false;
    if (count > 1 && readable && choice.count != 0) {
        if (!own && choice.count > 1 && ask(&choice, units, GPUSHARE_KEEP_NONE, &known)) {
            write_list(&choice, units, list);
            chosen = true;
        } else if (own &&
                   (choice.count == 1 || ask(&choice, units, counts ? GPUSHARE_KEEP_IT : GPUSHARE_KEEP_ASK, &known)) &&
                   (given != NULL || known)) {
            translate(wished, given, &choice, units, list);
            chosen = true;
        }
    }
    free(units);
    return chosen;
}

static void in_forked_child(void)
{
    gs_mutex_after_fork(&placement.lock);
}

bool gs_placement_begin(void)
{
    if (__atomic_load_n(&placement.done, __ATOMIC_ACQUIRE))
        return false;
    gs_mutex_lock(&placement.lock);
    static bool at_fork;
    if (!at_fork)
        at_fork = pthread_atfork(NULL, NULL, in_forked_child) == 0;
    char *list = placement.done ? NULL : calloc(1, LIST_ROOM);
    if (list != NULL && choose(list)) {
        const char *before = getenv(VISIBLE);
        placement.before = before != NULL ? strdup(before) : NULL;
        placement.changed = (before == NULL || placement.before != NULL) && setenv(VISIBLE, list, 1) == 0;
        gs_debug("the driver sees %s", list);
    }
    free(list);
    return true;
}

void gs_placement_end(bool initialised)
{
    /* Programs that read the variable or pass it on see the value that they set. */
    if (placement.changed && placement.before != NULL)
        setenv(VISIBLE, placement.before, 1);
    else if (placement.changed)
        unsetenv(VISIBLE);
    placement.changed = false;
    free(placement.before);
    placement.before = NULL;
    if (initialised)
        __atomic_store_n(&placement.done, true, __ATOMIC_RELEASE);
    gs_mutex_unlock(&placement.lock);
}

size_t gs_placement_restated(struct gs_place *place)
{
    if (!__atomic_load_n(&placement.done, __ATOMIC_ACQUIRE) || placement.order.place.gpu_count == 0)
        return 0;
    *place = placement.order;
    return sizeof(place->place) + place->place.gpu_count * sizeof(place->gpus[0]);
}

void gs_placement_moved(const uint8_t from[16], const uint8_t to[16])
{
    if (!__atomic_load_n(&placement.done, __ATOMIC_ACQUIRE))
        return;
    /* Each GPU appears once. */
    for (unsigned i = 0; i < placement.order.place.gpu_count; i++) {
        if (memcmp(placement.order.gpus[i], from, 16) == 0)
            memcpy(placement.order.gpus[i], to, 16);
        else if (memcmp(placement.order.gpus[i], to, 16) == 0)
            memcpy(placement.order.gpus[i], from, 16);
    }
}
