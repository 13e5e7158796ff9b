/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The wire protocol between the interposer (client), the scheduler (server) and control programs.
 *
 * Transport: AF_UNIX, SOCK_STREAM. Both ends are on one host, so integers are in native byte order. A frame is a header
 * followed by the body of its type. A peer is disconnected if it sends a frame of an unknown type, of a wrong length
 * for its type, or longer than GPUSHARE_MAX_REQUEST.
 *
 * Python reads this file through cffi. Use only #define NAME integer, enum, and structs of scalars, arrays of scalars
 * and structs. Every struct is padded by hand to its natural alignment.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds. Sizes are bytes. Strings are UTF-8 and NUL-terminated; strings that are too
 * long are cut at a character's boundary.
 */
#ifndef GPUSHARE_PROTOCOL_H
#define GPUSHARE_PROTOCOL_H

#include <stdint.h>

/*
 * Compatibility, from version 6 on. A Jupyter kernel keeps the library that it was started with. So after an upgrade a
 * scheduler has older clients, and after a downgrade newer ones.
 *
 * - No struct changes its layout, and no value changes its meaning. A field named `pad` is sent as 0 and not read. It
 *   may get a name and a meaning later, with 0 for "not stated".
 * - A new frame type, flag or value is sent only to a peer that has announced support for it. Clients announce it by a
 *   bit in `flags` of HELLO's header, and the scheduler by the same bit in `flags` of WELCOME's header. Peers ignore
 *   unknown bits. Name the bits in an enum gpushare_feature; there are none so far.
 * - Any other change needs a higher GPUSHARE_PROTOCOL_VERSION. Clients state it in HELLO and PLACE, in the first four
 *   bytes. The scheduler serves every version from GPUSHARE_PROTOCOL_OLDEST on, and refuses others with EPROTO.
 * - A refused client keeps its data, uses free GPU memory, and keeps trying to connect, because another scheduler may
 *   accept it.
 * - REFUSED keeps its layout in all versions.
 */
#define GPUSHARE_PROTOCOL_VERSION 7
#define GPUSHARE_PROTOCOL_OLDEST 7
/*
 * `protocol` of each control request. Requests and replies are JSON: new operations and keys do not need a new version.
 * Peers ignore unknown keys.
 */
#define GPUSHARE_CONTROL_VERSION 7
/* The longest frame that the scheduler reads, and the longest that it sends (a status reply). */
#define GPUSHARE_MAX_REQUEST 65536
#define GPUSHARE_MAX_REPLY 16777216
#define GPUSHARE_MAX_GPUS 16
/* A machine may have more devices, mostly MIG slices, of which one process uses few. */
#define GPUSHARE_MAX_PLACES 64

enum gpushare_type {
    /* client to scheduler */
    GPUSHARE_HELLO = 1,    /* struct gpushare_hello + gpu_count * struct gpushare_usage */
    GPUSHARE_REQUEST = 2,  /* struct gpushare_lease: the first submission of a burst is waiting for a lease */
    GPUSHARE_BURST = 3,    /* struct gpushare_burst: a burst began or ended while the lease is kept */
    GPUSHARE_RELEASED = 4, /* struct gpushare_lease: gate shut, streams drained, lease released */
    GPUSHARE_GROW = 5,     /* struct gpushare_grow: requests a promise of more memory; answered by one GROWN */
    GPUSHARE_USAGE = 6,    /* struct gpushare_usage: what is held has changed; needs no answer */
    GPUSHARE_EVICTED = 7,  /* struct gpushare_moved: answer to EVICT */
    GPUSHARE_RESTORED = 8, /* struct gpushare_moved: after GRANT, the footprint is resident (or not) */
    GPUSHARE_CELL = 9,     /* struct gpushare_cell: a cell began or ended in the Jupyter kernel */
    GPUSHARE_MOVING = 10,  /* struct gpushare_moved: progress of an EVICT */
    GPUSHARE_METER = 11,   /* struct gpushare_meter: how much GPU time the client has used */
    GPUSHARE_STUCK = 12,   /* struct gpushare_stuck: a REVOKE cannot be answered yet, with the reason */
    GPUSHARE_TICKET = 13,  /* struct gpushare_ticket: identifies the client; once, first of all; only REFUSED answers */
    GPUSHARE_PLACE = 14,   /* struct gpushare_place + gpu_count UUIDs; before HELLO; answered by one PLACED */
    GPUSHARE_PARKED = 15,  /* struct gpushare_parked: answer to PARK */
    GPUSHARE_WAKE = 16,    /* struct gpushare_wake: a parked client is needed; answered by one AWAKE, when possible */

    /* scheduler to client */
    GPUSHARE_WELCOME = 32,   /* struct gpushare_welcome */
    GPUSHARE_REFUSED = 33,   /* struct gpushare_refused; the connection is closed after it */
    GPUSHARE_GRANT = 34,     /* struct gpushare_lease */
    GPUSHARE_REVOKE = 35,    /* struct gpushare_lease; ignored if that lease is no longer held */
    GPUSHARE_EVICT = 36,     /* struct gpushare_evict; only sent to a client without a lease */
    GPUSHARE_GROWN = 37,     /* struct gpushare_grown */
    GPUSHARE_CANCEL = 38,    /* no body: every wait in progress ends with an error */
    GPUSHARE_CONTENDED = 39, /* struct gpushare_contended */
    /* struct gpushare_burst: end the burst once its work is done, unless submissions continue */
    GPUSHARE_END_BURST = 40,
    GPUSHARE_ROOM = 41,       /* struct gpushare_room: more of the room that a filling grant waits for is available */
    GPUSHARE_PREPARE = 42,    /* struct gpushare_prepare: contention is likely (or over) */
    GPUSHARE_PACE = 43,       /* struct gpushare_pace: how fast a client with a lease may submit */
    GPUSHARE_PLACED = 44,     /* struct gpushare_placed + gpu_count UUIDs: answer to PLACE */
    GPUSHARE_STEP = 45,       /* struct gpushare_lease: submit once more under a lease that the group is releasing */
    GPUSHARE_PARK = 46,       /* struct gpushare_park: stay out of the driver; only sent to a client without a lease */
    GPUSHARE_HIBERNATED = 47, /* struct gpushare_hibernated: the result, after PARKED */
    GPUSHARE_AWAKE = 48,      /* struct gpushare_awake: the driver may be called again (or still not) */

    /* control programs: the body is JSON text, described in docs/reference/control.md */
    GPUSHARE_CONTROL = 64, /* request */
    GPUSHARE_REPLY = 65,   /* reply to one CONTROL */
    GPUSHARE_EVENT = 66    /* pushed to subscribers */
};

/* Flags of struct gpushare_hello. */
enum gpushare_hello_flag {
    GPUSHARE_HELLO_REATTACH = 1, /* was attached to an earlier scheduler; the usages report what is held */
    GPUSHARE_HELLO_LEASED = 2,   /* had a lease then and continues under it */
    GPUSHARE_HELLO_BUSY = 4,     /* and is in a burst */
    /* Its memory may exceed the GPU's. What has no room is used from the host. This is permanent. */
    GPUSHARE_HELLO_OVERSUBSCRIBE = 8,
    /* It is parked, so it may be checkpointed. In the usages, unevictable and context are what it needs to be awake. */
    GPUSHARE_HELLO_HIBERNATED = 16
};

enum gpushare_backend { GPUSHARE_BACKEND_PLAIN = 0, GPUSHARE_BACKEND_SWAP = 1, GPUSHARE_BACKEND_MANAGED = 2 };

/* Why a burst ended (struct gpushare_burst) or a lease was released (struct gpushare_lease). */
enum gpushare_cause {
    GPUSHARE_CAUSE_NONE = 0,
    GPUSHARE_CAUSE_CELL = 1,    /* the cell ended (reported in the Jupyter kernel) */
    GPUSHARE_CAUSE_IDLE = 2,    /* the Jupyter kernel became idle (reported by the server) */
    GPUSHARE_CAUSE_QUIET = 3,   /* nothing was in flight or submitted for the quiet gap */
    GPUSHARE_CAUSE_RELEASE = 4, /* requested by the user */
    GPUSHARE_CAUSE_REVOKE = 5,  /* requested by the scheduler */
    GPUSHARE_CAUSE_GROWTH = 6,  /* released to grow: the larger footprint has no room now */
    GPUSHARE_CAUSE_FAILED = 7   /* the footprint could not be made resident */
};

enum gpushare_phase { GPUSHARE_PHASE_BEGIN = 0, GPUSHARE_PHASE_END = 1 };

/* The answers in struct gpushare_grown. */
enum gpushare_growth {
    GPUSHARE_GROWTH_RESIDENT = 0, /* promised, and may be mapped at once under the current lease */
    GPUSHARE_GROWTH_SWAPPED = 1,  /* promised; the lease, if held, must be released (CAUSE_GROWTH) */
    GPUSHARE_GROWTH_DEVICE = 2,   /* refused: more than the GPU could ever hold for this group */
    GPUSHARE_GROWTH_CAP = 3,      /* refused: more than the group's memory cap */
    GPUSHARE_GROWTH_HOST = 4      /* refused: host memory could not back it */
};

/* Status of struct gpushare_moved. */
enum gpushare_move_status {
    GPUSHARE_MOVE_DONE = 0,
    GPUSHARE_MOVE_PARTIAL = 1, /* fewer bytes than requested; `usage` has what is resident */
    GPUSHARE_MOVE_FAILED = 2   /* nothing could be moved; no data is lost */
};

/* Whether a client may be checkpointed now. */
enum gpushare_parking {
    GPUSHARE_PARKING_DONE = 0,        /* no thread is in the driver, and none enters before AWAKE */
    GPUSHARE_PARKING_BUSY = 1,        /* a thread is in the driver, or work is in flight */
    GPUSHARE_PARKING_CAPTURE = 2,     /* a stream capture is open */
    GPUSHARE_PARKING_GPUS = 3,        /* it uses several GPUs */
    GPUSHARE_PARKING_NCCL = 4,        /* it may have NCCL communicators */
    GPUSHARE_PARKING_IPC = 5,         /* it shares memory or events with other processes */
    GPUSHARE_PARKING_MANAGED = 6,     /* it has managed memory */
    GPUSHARE_PARKING_UNEVICTABLE = 7, /* it holds too much unevictable memory */
    GPUSHARE_PARKING_PLAIN = 8        /* its memory is not managed by the interposer */
};

/* Why a parked client must be woken. */
enum gpushare_wake_cause {
    GPUSHARE_WAKE_CALL = 1, /* a thread waits to call the driver */
    GPUSHARE_WAKE_EXIT = 2  /* the process is exiting */
};

struct gpushare_header {
    uint32_t length; /* of the whole frame, including this header */
    uint16_t type;   /* enum gpushare_type */
    uint16_t flags;  /* in HELLO and WELCOME: what the sender supports (see Compatibility); otherwise 0 */
};

/* What one client holds on one GPU. */
struct gpushare_usage {
    uint8_t gpu[16];      /* the device's UUID */
    uint64_t promised;    /* evictable bytes that the scheduler has promised: the footprint is at most this */
    uint64_t resident;    /* bytes of the footprint that are on the GPU */
    uint64_t unevictable; /* unevictable bytes: exported, arrays, pools, the application's own VMM */
    uint64_t context;     /* 0, or the bytes with which the client's contexts were admitted */
    uint64_t host;        /* bytes of host memory for evicted data */
    uint64_t clean;       /* bytes of `resident` that can leave the GPU without a copy, as far as is known */
    uint64_t shared;      /* bytes of `host` that other clients of the user have, too, in the same place */
    uint64_t disk;        /* bytes of evicted data on a disk */
};

/*
 * Where one scheduler serves several users, a uid may not identify the peer's user. The ticket does, and it names the
 * lease group. The scheduler issues it to the user's server (control.md), which writes it to a file for its Jupyter
 * kernel.
 */
struct gpushare_ticket {
    char ticket[128];
};

/* Which order of GPUs to store for a group that has none yet. */
enum gpushare_keep {
    GPUSHARE_KEEP_NONE = 0, /* the scheduler's */
    GPUSHARE_KEEP_IT = 1,   /* the order in this message */
    GPUSHARE_KEEP_ASK = 2   /* none: only asks whether the group has one */
};

/*
 * Asks which GPUs to use first. The UUIDs of the GPUs that the client may use follow, 16 bytes each, in its own order.
 */
struct gpushare_place {
    uint32_t version;
    uint32_t gpu_count; /* 1 to GPUSHARE_MAX_PLACES */
    char group[64];     /* as in HELLO */
    uint32_t keep;      /* enum gpushare_keep */
    uint32_t pad;
};

/*
 * The same UUIDs follow, in the order that the client should use. The order stays the same as long as the group has
 * clients.
 */
struct gpushare_placed {
    uint32_t gpu_count;
    uint32_t known; /* 1: the group already had this order */
};

/* The GPUs that a process may use according to its CUDA_VISIBLE_DEVICES. It is woken only on these. None: unknown. */
struct gpushare_seen {
    uint32_t count;
    uint32_t pad;
    uint8_t gpus[GPUSHARE_MAX_GPUS][16];
};

struct gpushare_hello {
    uint32_t version;
    int32_t pid;
    uint32_t flags;
    uint32_t backend;
    uint32_t gpu_count; /* number of usages that follow */
    /*
     * The inode of /proc/self/ns/pid; 0: not stated, as by older clients. It decides only which reason the client's
     * user reads if the process cannot be hibernated.
     */
    uint32_t pid_namespace;
    uint64_t lease;            /* with HELLO_LEASED: the lease under which it continues */
    uint64_t cap;              /* upper limit of the group's device memory in bytes; 0: no limit */
    char group[64];            /* lease group: the Jupyter kernel's id, or an id made by `gpushare run` */
    char name[192];            /* for users: the path of a notebook, or the name of a program */
    struct gpushare_seen seen; /* with HELLO_HIBERNATED */
};

struct gpushare_welcome {
    uint32_t version;
    uint32_t contended; /* as in struct gpushare_contended */
    uint64_t client;    /* number of this connection, for logs */
    uint64_t quiet_ns;  /* while contended, a burst ends after a gap of this length */
    uint64_t headroom;  /* bytes to request beyond the need, so that most allocations need no request */
    /*
     * Host memory for evicted data. If `pool` is 1, the message carries the descriptor of the user's pool (SCM_RIGHTS;
     * its layout is in pool.h), and `slot` identifies the client in it. A client that already has that pool (the same
     * inode) keeps its slot: WELCOME has the same number.
     */
    uint32_t pool;
    uint32_t slot;
};

struct gpushare_refused {
    uint32_t code; /* an errno: EPROTO for another version, EACCES for another user */
    uint32_t pad;
    char text[248];
};

struct gpushare_lease {
    uint64_t lease; /* REQUEST: the client's serial; GRANT: assigned by the scheduler */
    uint64_t at_ns;
    uint32_t cause; /* enum gpushare_cause, in RELEASED */
    /*
     * In GRANT. 0: there is room for the whole footprint. 1: room is still being made by evictions in progress. On each
     * GPU, no more may be resident than the last ROOM permits (until the first one: than is resident now). A REVOKE
     * ends the wait for room: what was restored stays, and RELEASED answers.
     *
     * In STEP. 1: if the client has released the lease, it holds it again until it sends RELEASED. 0: if the client has
     * released the lease, STEP has no effect.
     */
    uint32_t filling;
};

struct gpushare_burst {
    uint64_t at_ns;
    uint32_t phase;
    uint32_t cause;
};

struct gpushare_grow {
    uint64_t serial;
    struct gpushare_usage least; /* the required promised, unevictable and context bytes */
    uint64_t most;               /* the best value of promised, with headroom */
    uint32_t oversubscribe;      /* 1: the memory may exceed the GPU's; as with HELLO_OVERSUBSCRIBE */
    uint32_t urgent;             /* 1: an open capture or running work may need it before the lease is released */
};

struct gpushare_grown {
    uint64_t serial;
    uint64_t promised; /* what is promised now: between least.promised and most */
    uint32_t status;   /* enum gpushare_growth */
    uint32_t pad;
    char text[232]; /* if refused: a sentence for the user, with numbers */
};

struct gpushare_evict {
    uint64_t serial;
    uint64_t bytes; /* at least that many, or all that there are */
    uint8_t gpu[16];
};

struct gpushare_moved {
    uint64_t serial;             /* EVICTED: serial of the EVICT; RESTORED: the lease */
    struct gpushare_usage usage; /* after the move */
    uint64_t bytes;              /* evicted or restored */
    uint64_t copied;             /* how many of them had to be copied */
    uint64_t hashed;             /* EVICTED: how many of them were looked at to find out what has to be copied */
    uint64_t zero;               /* and were zeros, which are not stored */
    uint64_t shared;             /* and were in host memory already, for other data */
    uint64_t duration_ns;
    uint32_t status;
    uint32_t error; /* in RESTORED, if not everything could be restored: the driver's CUresult; 0: unknown */
};

struct gpushare_room {
    uint64_t lease;
    uint64_t resident; /* bytes of the footprint that may be on the GPU now; UINT64_MAX: everything promised */
    uint8_t gpu[16];
    /*
     * 1: final under this lease, unless the promise grows. What has no room is used from the host. Sent to a client
     * that oversubscribes: for each GPU, after each GRANT (which fills), and before a GROWN that changes it.
     */
    uint32_t last;
    uint32_t pad;
};

struct gpushare_prepare {
    uint64_t bytes; /* how much of the pool to keep page-locked, in use or free; 0: unlock what is free */
};

struct gpushare_cell {
    uint64_t at_ns;
    uint32_t phase;
    uint32_t pad;
    char msg_id[112];
};

struct gpushare_contended {
    uint32_t waiting; /* number of groups that are waiting for a GPU of this client; 0: none */
    /*
     * Groups that also hold a lease there. If either number is not 0, a burst that became quiet ends and is reported
     * (BURST).
     */
    uint32_t beside;
};

/*
 * The GPU time that a client has used on one GPU since it attached. Sent when a burst ends, and every 100 ms during a
 * burst, as long as PACE requests it. Measured with events: the time for which its own work was on the GPU, with
 * overlapping work counted once. Running work is not included yet.
 */
struct gpushare_meter {
    uint8_t gpu[16];
    uint64_t at_ns;
    uint64_t busy_ns;
    uint64_t submissions;
};

/* Sent once per lease, when draining has taken longer than 200 ms. */
struct gpushare_stuck {
    uint64_t lease;
    uint64_t since_ns; /* when the running work was submitted, at the latest */
    char kernel[112];  /* the function's name, or the kind of work: "copy", "graph", ... */
};

/* Valid until the next PACE. Before the first one, nothing is bounded or measured. */
struct gpushare_pace {
    uint64_t inflight_ns; /* own work that may be in flight, as measured; 0: paused; UINT64_MAX: no bound */
    /* a client that could not submit for this long submits once nevertheless, if the share permits */
    uint64_t stall_ns;
    uint32_t share_ppm; /* part of the wall time for which own work may be on the GPU; 1000000: all */
    uint32_t meter;     /* 1: measure each submission, and send METER */
};

struct gpushare_park {
    uint64_t serial;
};

struct gpushare_parked {
    uint64_t serial;
    uint32_t status; /* enum gpushare_parking */
    uint32_t pad;
    struct gpushare_usage needs; /* unevictable and context: what it needs on its GPU to be awake */
    struct gpushare_seen seen;
};

/* Afterwards, a parked client counts as hibernated, or continues as if there had been no PARK. */
struct gpushare_hibernated {
    uint64_t serial; /* of the PARK */
    uint32_t done;   /* 1: its contexts are off the GPU; 0: it was not hibernated, and may call the driver */
    uint32_t pad;
    uint64_t context; /* measured size of the contexts, at least: what it needs again; 0: unknown */
};

struct gpushare_wake {
    uint64_t serial; /* chosen by the client */
    uint64_t at_ns;
    uint32_t cause; /* enum gpushare_wake_cause */
    uint32_t pad;
    struct gpushare_usage needs; /* as in PARKED */
};

struct gpushare_awake {
    uint64_t serial; /* of the WAKE; 0: not requested by the client */
    /* 0: the driver may be called; otherwise a CUresult: it cannot be woken now, and no data is lost */
    uint32_t status;
    uint32_t moved; /* 1: what was on GPU `from` is on GPU `to` now */
    uint8_t from[16];
    uint8_t to[16];
    char text[200]; /* on failure: a sentence for the user */
};

#endif
