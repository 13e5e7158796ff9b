/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/pace.h"

#include "base/clock.h"
#include "base/lock.h"

#define MILLISECOND INT64_C(1000000)
#define SECOND INT64_C(1000000000)

enum { ALL = 1000000 /* the whole GPU, as a share in ppm */, SETS = 512, WAYS = 4 };

/* Unused time of a share can be used later, up to the credit. Time beyond the share is paid back, up to the debt. */
static const int64_t longest_credit = 50 * MILLISECOND;
static const int64_t longest_debt = 10 * SECOND;
/* An estimate is measured again after this time. */
static const uint64_t longest_valid = 1 * SECOND;
/* How much work may go without events while time is charged; otherwise, the fraction of the bound. */
static const uint64_t most_unmeasured = UINT64_C(100000);
enum { UNMEASURED_PART = 5 };
/* The size of a copy that keeps a bus busy for a few milliseconds. */
static const size_t largest_piece = (size_t)64 << 20;

static struct {
    struct gs_mutex lock;
    struct gpushare_pace order;
    unsigned in_flight, unknown; /* number of submissions, and of those without an estimate */
    uint64_t in_flight_ns;       /* sum of the estimates of the others */
    uint64_t head_ns, head_at;   /* the work that runs now: its estimate, and the latest time at which it started */
    uint64_t returned;
    uint64_t admitted_at; /* when the last submission was admitted */
    int64_t credit_ns;    /* GPU time that may be used; negative: a debt */
    uint64_t credit_at;
    struct estimate {
        uint64_t key; /* 0: none */
        uint64_t mean_ns;
        uint64_t at; /* when it was last learnt */
    } estimates[SETS][WAYS];
} pace = {.lock = GS_MUTEX(GS_RANK_PACE), .order = {.inflight_ns = UINT64_MAX, .share_ppm = ALL}};

/* Read without the lock: whether copies are cut into pieces; whether measuring has failed. */
static int bounded;
static int unmeasured;

static bool active_locked(void)
{
    return pace.order.inflight_ns != UINT64_MAX || pace.order.share_ppm < ALL || pace.order.meter != 0;
}

static bool charges_locked(void)
{
    return pace.order.share_ppm < ALL || pace.order.meter != 0;
}

void gs_pace_set(const struct gpushare_pace *order)
{
    static const struct gpushare_pace nothing = {.inflight_ns = UINT64_MAX, .share_ppm = ALL};
    gs_mutex_lock(&pace.lock);
    bool shared = pace.order.share_ppm < ALL;
    pace.order = order != NULL ? *order : nothing;
    if (!shared) {
        pace.credit_ns = 0;
        pace.credit_at = gs_now_ns();
    }
    __atomic_store_n(&bounded, pace.order.inflight_ns != UINT64_MAX || pace.order.share_ppm < ALL, __ATOMIC_RELAXED);
    gs_mutex_unlock(&pace.lock);
}

bool gs_pace_active(void)
{
    gs_mutex_lock(&pace.lock);
    bool active = active_locked();
    gs_mutex_unlock(&pace.lock);
    return active;
}

bool gs_pace_metered(void)
{
    gs_mutex_lock(&pace.lock);
    bool metered = pace.order.meter != 0;
    gs_mutex_unlock(&pace.lock);
    return metered;
}

size_t gs_pace_piece(size_t bytes)
{
    bool cut = bytes > largest_piece && __atomic_load_n(&bounded, __ATOMIC_RELAXED);
    return __builtin_expect(cut, 0) ? largest_piece : bytes;
}

/* The run time of the same work depends on its size, so each size has an estimate of its own. */
static uint64_t key_of(uintptr_t work, size_t size)
{
    uint64_t key = ((uint64_t)work ^ ((uint64_t)size * UINT64_C(0xD6E8FEB86659FD93))) * UINT64_C(0x9E3779B97F4A7C15);
    return key ^ key >> 32;
}

/* NULL: there is no estimate. */
static struct estimate *find(uint64_t key)
{
    struct estimate *set = pace.estimates[key % SETS];
    for (unsigned i = 0; i < WAYS; i++)
        if (set[i].key == key)
            return &set[i];
    return NULL;
}

static void learn(uint64_t key, uint64_t duration_ns, uint64_t now)
{
    struct estimate *found = find(key), *set = pace.estimates[key % SETS];
    if (found != NULL) {
        found->mean_ns += (uint64_t)((int64_t)(duration_ns - found->mean_ns) / 4);
    } else {
        found = set;
        for (unsigned i = 1; i < WAYS; i++)
            if (set[i].at < found->at)
                found = &set[i];
        *found = (struct estimate){.key = key, .mean_ns = duration_ns};
    }
    found->at = now;
}

void gs_pace_learn(const struct gs_submission *submission, uint64_t duration_ns)
{
    uint64_t now = gs_now_ns();
    gs_mutex_lock(&pace.lock);
    learn(key_of(submission->work, submission->size), duration_ns, now);
    if (submission->size != 0)
        learn(key_of(submission->work, 0), duration_ns, now);
    gs_mutex_unlock(&pace.lock);
}

static void estimate(struct gs_submission *submission, uint64_t now)
{
    const struct estimate *found = find(key_of(submission->work, submission->size));
    submission->learns = found == NULL || now - found->at > longest_valid;
    if (found == NULL)
        found = find(key_of(submission->work, 0));
    submission->estimated = found != NULL;
    submission->estimate_ns = found != NULL ? found->mean_ns : 0;
    submission->charged = charges_locked();
    submission->most_unmeasured_ns = most_unmeasured;
    if (!submission->charged)
        submission->most_unmeasured_ns = pace.order.inflight_ns / UNMEASURED_PART;
}

void gs_pace_charge(uint64_t busy_ns)
{
    gs_mutex_lock(&pace.lock);
    pace.credit_ns -= (int64_t)busy_ns;
    if (pace.credit_ns < -longest_debt)
        pace.credit_ns = -longest_debt;
    gs_mutex_unlock(&pace.lock);
}

static void fill_bucket(uint64_t now)
{
    double share = (double)pace.order.share_ppm / ALL;
    /* Running work is charged when it ends. Until then, its run time so far counts as used. */
    int64_t running = pace.in_flight != 0 ? (int64_t)(now - pace.head_at) : 0;
    int64_t most = (int64_t)((double)(longest_credit + running) * share);
    pace.credit_ns += (int64_t)((double)(now - pace.credit_at) * share);
    if (pace.credit_ns > most)
        pace.credit_ns = most;
    pace.credit_at = now;
}

/* How long (ns) until the share permits the work in flight and one more submission; 0: now. */
static uint64_t until_share_allows(void)
{
    int64_t left = pace.credit_ns - (int64_t)pace.in_flight_ns;
    if (pace.order.share_ppm >= ALL || left >= 0)
        return 0;
    double wait = (double)-left * ALL / (pace.order.share_ppm != 0 ? pace.order.share_ppm : 1);
    return wait < (double)SECOND ? (uint64_t)wait + 1 : (uint64_t)SECOND;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * How long (ns) until the work in flight leaves room for the submission. 0: now; UINT64_MAX: time alone will not change
 * that.
 *
 * Running work takes less room the longer it has run. Work queued behind it does not. So the queue stays bounded also
 * when other processes use the GPU's time. A submission that is longer than the bound, or has no estimate, is admitted
 * just before the GPU would become idle.
 */
static uint64_t until_room(const struct gs_submission *submission, uint64_t now)
{
    uint64_t bound = pace.order.inflight_ns;
    if (bound == 0)
        return UINT64_MAX;
    if (pace.in_flight == 0 || (bound == UINT64_MAX && pace.order.share_ppm >= ALL))
        return 0;
    if (pace.unknown != 0)
        return UINT64_MAX;
    if (bound == UINT64_MAX)
        return 0;
    uint64_t short_of_idle = bound / 4, most = short_of_idle;
    if (submission->estimated && submission->estimate_ns < bound - short_of_idle)
        most = bound - submission->estimate_ns;
    uint64_t ran = lesser(now - pace.head_at, lesser(pace.head_ns, pace.in_flight_ns));
    uint64_t left = pace.in_flight_ns - ran;
    if (left <= most)
        return 0;
    return left - most <= pace.head_ns - lesser(ran, pace.head_ns) ? left - most : UINT64_MAX;
}

bool gs_pace_admit(struct gs_submission *submission, uint64_t since, uint64_t *patience)
{
    gs_mutex_lock(&pace.lock);
    uint64_t now = gs_now_ns();
    fill_bucket(now);
    estimate(submission, now);
    uint64_t waits_since = since > pace.admitted_at ? since : pace.admitted_at;
    bool stalled = now - waits_since >= pace.order.stall_ns;
    *patience = 0;
    /* Without measuring, no bound is possible. But a pause needs no measuring. */
    if (!gs_pace_unmeasured())
        *patience = until_share_allows();
    uint64_t room = gs_pace_unmeasured() && pace.order.inflight_ns != 0 ? 0 : until_room(submission, now);
    if (*patience == 0 && !stalled && room != 0)
        *patience = lesser(room, pace.order.stall_ns - (now - waits_since));
    if (*patience == 0) {
        if (pace.in_flight == 0) {
            pace.head_ns = submission->estimate_ns;
            pace.head_at = now;
        }
        submission->admitted = true;
        pace.admitted_at = now;
        pace.in_flight++;
        pace.unknown += !submission->estimated;
        pace.in_flight_ns += submission->estimate_ns;
    }
    gs_mutex_unlock(&pace.lock);
    return submission->admitted;
}

void gs_pace_return(struct gs_submission *submission, const struct gs_submission *next)
{
    gs_mutex_lock(&pace.lock);
    pace.head_ns = next != NULL ? next->estimate_ns : 0;
    pace.head_at = gs_now_ns();
    pace.in_flight--;
    pace.returned++;
    pace.unknown -= !submission->estimated;
    pace.in_flight_ns -= submission->estimate_ns;
    gs_mutex_unlock(&pace.lock);
    submission->admitted = false;
}

unsigned gs_pace_in_flight(uint64_t *returned)
{
    gs_mutex_lock(&pace.lock);
    unsigned in_flight = pace.in_flight;
    *returned = pace.returned;
    gs_mutex_unlock(&pace.lock);
    return in_flight;
}

bool gs_pace_go_unmeasured(void)
{
    return __atomic_exchange_n(&unmeasured, 1, __ATOMIC_RELAXED) == 0;
}

bool gs_pace_unmeasured(void)
{
    return __atomic_load_n(&unmeasured, __ATOMIC_RELAXED) != 0;
}

void gs_pace_after_fork(void)
{
    gs_mutex_after_fork(&pace.lock);
}
