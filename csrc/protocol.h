/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The wire protocol between the interposer (client), the scheduler (server) and control programs.
 *
 * Transport: AF_UNIX, SOCK_STREAM. Both ends are on one host, so integers are in native byte order.
 * A frame is a header and the body that its type names. A peer that sends a frame of an unknown type,
 * of a length that its type does not allow, or longer than GPUSHARE_MAX_REQUEST is disconnected.
 *
 * Python reads this file through cffi: keep it to #define NAME integer, enum, and struct of scalars,
 * arrays of scalars and structs. Every struct is padded by hand to its natural alignment.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds, sizes are bytes, strings are UTF-8 and NUL-terminated
 * (cut at a character's boundary where they are too long).
 */
#ifndef GPUSHARE_PROTOCOL_H
#define GPUSHARE_PROTOCOL_H

#include <stdint.h>

/*
 * Compatibility, from version 6 on. A Jupyter kernel keeps the library that it was started with, so a scheduler meets
 * clients that are older than itself after an upgrade, and newer ones after a downgrade.
 *
 * - No struct changes its layout, and no value changes its meaning. A field named `pad` is sent as 0 and not read. It
 *   may get a name and a meaning later, with 0 for "not stated".
 * - A new frame type, flag or value is sent only to a peer that has announced that it understands it: a client by a bit
 *   in `flags` of HELLO's header, the scheduler by the same bit in `flags` of WELCOME's header. Peers that do not know
 *   a bit ignore it. The bits are to be named in an enum gpushare_feature; there are none so far.
 * - What these rules do not allow raises GPUSHARE_PROTOCOL_VERSION. Clients state it in HELLO and PLACE, in the first
 *   four bytes. The scheduler serves every version from GPUSHARE_PROTOCOL_OLDEST on, and refuses others with EPROTO.
 * - A refused client keeps its data, uses what is free on the GPU, and keeps trying to connect: another scheduler may
 *   accept it.
 * - REFUSED keeps its layout in all versions.
 */
#define GPUSHARE_PROTOCOL_VERSION 6
#define GPUSHARE_PROTOCOL_OLDEST 6
/*
 * `protocol` of each control request. Requests and answers are JSON: they gain operations and keys without a new
 * version. Peers ignore keys that they do not know.
 */
#define GPUSHARE_CONTROL_VERSION 6
/* Longest frame that the scheduler reads, and longest that it writes (a status reply). */
#define GPUSHARE_MAX_REQUEST 65536
#define GPUSHARE_MAX_REPLY 16777216
#define GPUSHARE_MAX_GPUS 16
/* A machine may have more, MIG slices for the most part, of which one process uses few. */
#define GPUSHARE_MAX_PLACES 64

enum gpushare_type {
    /* client to scheduler */
    GPUSHARE_HELLO = 1,    /* struct gpushare_hello + gpu_count * struct gpushare_usage */
    GPUSHARE_REQUEST = 2,  /* struct gpushare_lease: the first submission of a burst waits for a lease */
    GPUSHARE_BURST = 3,    /* struct gpushare_burst: a burst began or ended under a lease that is kept */
    GPUSHARE_RELEASED = 4, /* struct gpushare_lease: gate shut, streams drained, lease given back */
    GPUSHARE_GROW = 5,     /* struct gpushare_grow: more memory is to be promised; one GROWN answers */
    GPUSHARE_USAGE = 6,    /* struct gpushare_usage: what is held changed without need of an answer */
    GPUSHARE_EVICTED = 7,  /* struct gpushare_moved: answer to EVICT */
    GPUSHARE_RESTORED = 8, /* struct gpushare_moved: after GRANT, the footprint is resident (or not) */
    GPUSHARE_CELL = 9,     /* struct gpushare_cell: a cell began or ended in the kernel */
    GPUSHARE_MOVING = 10,  /* struct gpushare_moved: of an EVICT that is under way, what has left so far */
    GPUSHARE_METER = 11,   /* struct gpushare_meter: how much of a GPU the client has had */
    GPUSHARE_STUCK = 12,   /* struct gpushare_stuck: a REVOKE cannot be answered yet, and why */
    GPUSHARE_TICKET = 13,  /* struct gpushare_ticket: who this is; once, before all else; only REFUSED answers */
    GPUSHARE_PLACE = 14,   /* struct gpushare_place + gpu_count UUIDs; before HELLO; one PLACED answers */
    GPUSHARE_PARKED = 15,  /* struct gpushare_parked: answer to PARK */
    GPUSHARE_WAKE = 16,    /* struct gpushare_wake: a parked client is needed; one AWAKE answers, in time */

    /* scheduler to client */
    GPUSHARE_WELCOME = 32,    /* struct gpushare_welcome */
    GPUSHARE_REFUSED = 33,    /* struct gpushare_refused; the connection is closed after it */
    GPUSHARE_GRANT = 34,      /* struct gpushare_lease */
    GPUSHARE_REVOKE = 35,     /* struct gpushare_lease; ignored if that lease is not held any more */
    GPUSHARE_EVICT = 36,      /* struct gpushare_evict; only sent to a client without a lease */
    GPUSHARE_GROWN = 37,      /* struct gpushare_grown */
    GPUSHARE_CANCEL = 38,     /* no body: every wait that is under way ends with an error */
    GPUSHARE_CONTENDED = 39,  /* struct gpushare_contended */
    GPUSHARE_END_BURST = 40,  /* struct gpushare_burst: end the burst once its work is done, unless submissions go on */
    GPUSHARE_ROOM = 41,       /* struct gpushare_room: more of the room that a filling grant waits for is there */
    GPUSHARE_PREPARE = 42,    /* struct gpushare_prepare: contention is in sight (or over) */
    GPUSHARE_PACE = 43,       /* struct gpushare_pace: how fast a client with a lease may submit */
    GPUSHARE_PLACED = 44,     /* struct gpushare_placed + gpu_count UUIDs: answer to PLACE */
    GPUSHARE_STEP = 45,       /* struct gpushare_lease: under a lease that its group gives back, submit once more */
    GPUSHARE_PARK = 46,       /* struct gpushare_park: stay out of the driver; only sent to one without a lease */
    GPUSHARE_HIBERNATED = 47, /* struct gpushare_hibernated: what came of it, after PARKED */
    GPUSHARE_AWAKE = 48,      /* struct gpushare_awake: the driver may be called again (or still not) */

    /* control programs: JSON text as the body, described in docs/reference/control.md */
    GPUSHARE_CONTROL = 64, /* request */
    GPUSHARE_REPLY = 65,   /* answer to one CONTROL */
    GPUSHARE_EVENT = 66    /* pushed to subscribers */
};

/* Flags of struct gpushare_hello. */
enum gpushare_hello_flag {
    GPUSHARE_HELLO_REATTACH = 1, /* was attached to an earlier scheduler; the usages say what is held */
    GPUSHARE_HELLO_LEASED = 2,   /* had a lease then and goes on under it */
    GPUSHARE_HELLO_BUSY = 4,     /* and is in a burst */
    /* Its memory may be more than a GPU has: what has no room there is used where it is. Once so, always so. */
    GPUSHARE_HELLO_OVERSUBSCRIBE = 8,
    /* It is parked, so it may be checkpointed: unevictable and context of the usages are what it needs to be awake. */
    GPUSHARE_HELLO_HIBERNATED = 16
};

enum gpushare_backend { GPUSHARE_BACKEND_PLAIN = 0, GPUSHARE_BACKEND_SWAP = 1, GPUSHARE_BACKEND_MANAGED = 2 };

/* Why a burst ended (struct gpushare_burst) or a lease was given back (struct gpushare_lease). */
enum gpushare_cause {
    GPUSHARE_CAUSE_NONE = 0,
    GPUSHARE_CAUSE_CELL = 1,    /* the kernel's cell ended (hook in the kernel) */
    GPUSHARE_CAUSE_IDLE = 2,    /* the kernel went idle (seen by the server) */
    GPUSHARE_CAUSE_QUIET = 3,   /* nothing in flight and nothing submitted for the quiet gap */
    GPUSHARE_CAUSE_RELEASE = 4, /* asked for by the user */
    GPUSHARE_CAUSE_REVOKE = 5,  /* asked for by the scheduler */
    GPUSHARE_CAUSE_GROWTH = 6,  /* gave the lease up to grow: the larger footprint has no room now */
    GPUSHARE_CAUSE_FAILED = 7   /* the footprint could not be made resident */
};

enum gpushare_phase { GPUSHARE_PHASE_BEGIN = 0, GPUSHARE_PHASE_END = 1 };

/* Answers of struct gpushare_grown. */
enum gpushare_growth {
    GPUSHARE_GROWTH_RESIDENT = 0, /* promised, and may be mapped at once under the lease held */
    GPUSHARE_GROWTH_SWAPPED = 1,  /* promised; the lease, if held, is to be given up (CAUSE_GROWTH) */
    GPUSHARE_GROWTH_DEVICE = 2,   /* refused: more than the GPU could ever hold for this group */
    GPUSHARE_GROWTH_CAP = 3,      /* refused: more than the group's memory cap */
    GPUSHARE_GROWTH_HOST = 4      /* refused: the host's memory could not back it */
};

/* Status of struct gpushare_moved. */
enum gpushare_move_status {
    GPUSHARE_MOVE_DONE = 0,
    GPUSHARE_MOVE_PARTIAL = 1, /* fewer bytes than asked for; `usage` says what is resident */
    GPUSHARE_MOVE_FAILED = 2   /* nothing could be moved; nothing was lost */
};

/* Whether a client may be checkpointed now. */
enum gpushare_parking {
    GPUSHARE_PARKING_DONE = 0,        /* no thread is in the driver, and none enters it before AWAKE */
    GPUSHARE_PARKING_BUSY = 1,        /* a thread is in the driver, or work is in flight */
    GPUSHARE_PARKING_CAPTURE = 2,     /* a stream capture is open */
    GPUSHARE_PARKING_GPUS = 3,        /* it uses several GPUs */
    GPUSHARE_PARKING_NCCL = 4,        /* it may have NCCL communicators */
    GPUSHARE_PARKING_IPC = 5,         /* it shares memory or events with other processes */
    GPUSHARE_PARKING_MANAGED = 6,     /* it has managed memory */
    GPUSHARE_PARKING_UNEVICTABLE = 7, /* it holds more memory that cannot be evicted than is worth it */
    GPUSHARE_PARKING_PLAIN = 8        /* its memory is not managed by us */
};

/* Why a parked client is to be awake. */
enum gpushare_wake_cause {
    GPUSHARE_WAKE_CALL = 1, /* a thread waits to enter the driver */
    GPUSHARE_WAKE_EXIT = 2  /* the process ends */
};

struct gpushare_header {
    uint32_t length; /* of the whole frame, this header included */
    uint16_t type;   /* enum gpushare_type */
    uint16_t flags;  /* of HELLO and WELCOME: what the sender understands (see Compatibility); else 0 */
};

/* What one client holds on one GPU. */
struct gpushare_usage {
    uint8_t gpu[16];      /* the device's UUID */
    uint64_t promised;    /* evictable bytes admitted by the scheduler: the client's footprint, at most */
    uint64_t resident;    /* of the footprint, bytes on the GPU */
    uint64_t unevictable; /* unevictable bytes: exported, arrays, pools, the application's own VMM */
    uint64_t context;     /* 0, or the bytes that the client's contexts were admitted with */
    uint64_t host;        /* bytes of host memory held for swapped data */
};

/*
 * Where one scheduler serves several users, what the peer's uid does not say: whose the peer is, and which lease group
 * it is of. Issued by the scheduler to the user's server (control.md), which writes it to a file for its kernel.
 */
struct gpushare_ticket {
    char ticket[128];
};

/* What a group that has no order of its GPUs yet is to have. */
enum gpushare_keep {
    GPUSHARE_KEEP_NONE = 0, /* the scheduler's */
    GPUSHARE_KEEP_IT = 1,   /* the one that is stated */
    GPUSHARE_KEEP_ASK = 2   /* none: it is only asked whether it has one */
};

/* Asks which GPUs to use first. The UUIDs of those that it may use follow, 16 bytes each, in the order it would have.
 */
struct gpushare_place {
    uint32_t version;
    uint32_t gpu_count; /* 1 to GPUSHARE_MAX_PLACES */
    char group[64];     /* as in HELLO */
    uint32_t keep;      /* enum gpushare_keep */
    uint32_t pad;
};

/* The same UUIDs follow, in the order in which it should have them; the same order as long as the group has clients. */
struct gpushare_placed {
    uint32_t gpu_count;
    uint32_t known; /* 1: the group had this order before */
};

/* The GPUs that a process may use, by its CUDA_VISIBLE_DEVICES: it is woken on none but these. None: not known. */
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
    uint32_t gpu_count; /* usages that follow */
    uint32_t pad;
    uint64_t lease;            /* with HELLO_LEASED: the lease it goes on under */
    uint64_t cap;              /* bytes of device memory that the group may have, 0: no cap */
    char group[64];            /* lease group: the kernel's id, or an id made by `gpushare run` */
    char name[192];            /* what people call it: a notebook's path, a program's name */
    struct gpushare_seen seen; /* with HELLO_HIBERNATED */
};

struct gpushare_welcome {
    uint32_t version;
    uint32_t contended; /* as in struct gpushare_contended */
    uint64_t client;    /* number of this connection, for logs */
    uint64_t quiet_ns;  /* while contended, a burst is over after a gap of this length */
    uint64_t headroom;  /* bytes to ask for beyond need, so that most allocations ask nobody */
    /*
     * Host memory for swapped data. If pool is 1, the message carries the descriptor of the user's pool (SCM_RIGHTS;
     * its layout is in pool.h), and slot is the client's mark in it. A client that already has that pool (the same
     * inode) keeps its slot: WELCOME tells it the same one.
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
    uint64_t lease; /* REQUEST: the client's own serial; GRANT: given by the scheduler */
    uint64_t at_ns;
    uint32_t cause; /* enum gpushare_cause, of RELEASED */
    /*
     * Of GRANT. 0: the room for the whole footprint is there. 1: it is still being made, by evictions that are under
     * way; on each GPU, no more may be resident than the last ROOM said (until the first one: than is). A REVOKE ends
     * the wait for room: what has arrived stays, and RELEASED answers.
     *
     * Of STEP. 1: the client has given the lease back, and has it again until it is RELEASED. 0: nothing, if it has.
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
    struct gpushare_usage least; /* promised, unevictable and context as they must become */
    uint64_t most;               /* promised as it would best become: headroom included */
    uint32_t oversubscribe;      /* 1: it may become more than the GPU has; the client is as with HELLO_OVERSUBSCRIBE */
    uint32_t urgent;             /* 1: an open capture, or what runs, may need it before the lease is given back */
};

struct gpushare_grown {
    uint64_t serial;
    uint64_t promised; /* what was promised: between least.promised and most */
    uint32_t status;   /* enum gpushare_growth */
    uint32_t pad;
    char text[232]; /* if refused: the sentence for the user, with the numbers */
};

struct gpushare_evict {
    uint64_t serial;
    uint64_t bytes; /* at least so many, or all there are */
    uint8_t gpu[16];
};

struct gpushare_moved {
    uint64_t serial;             /* EVICTED: of the EVICT; RESTORED: the lease */
    struct gpushare_usage usage; /* after the move */
    uint64_t bytes;              /* leaving or reaching the GPU */
    uint64_t copied;             /* of them, bytes that had to be copied */
    uint64_t duration_ns;
    uint32_t status;
    uint32_t error; /* of RESTORED, if not all could be moved: the driver's CUresult; 0: not known */
};

struct gpushare_room {
    uint64_t lease;
    uint64_t resident; /* bytes of the footprint that may be on the GPU now; UINT64_MAX: all that is promised */
    uint8_t gpu[16];
    /*
     * 1: under this lease, there will be no more unless the promise grows. What has no room is used where it is. Said
     * to a client that oversubscribes, for each GPU, after each GRANT (which fills), and before a GROWN that changes
     * it.
     */
    uint32_t last;
    uint32_t pad;
};

struct gpushare_prepare {
    uint64_t bytes; /* of the pool that the client should have page-locked, in use or free; 0: unlock what is free */
};

struct gpushare_cell {
    uint64_t at_ns;
    uint32_t phase;
    uint32_t pad;
    char msg_id[112];
};

struct gpushare_contended {
    uint32_t waiting; /* groups that wait for a GPU of this client's; 0: none */
    /* Groups that hold a lease there too. With either, a burst that went quiet is over and said to be (BURST). */
    uint32_t beside;
};

/*
 * What a client has had of one GPU since it attached; said when a burst ends, and each 100 ms while one goes on, as
 * long as PACE asks for it. Measured with events: the time for which work of its own was on the GPU, what ran side by
 * side counted once. What still runs is not in it yet.
 */
struct gpushare_meter {
    uint8_t gpu[16];
    uint64_t at_ns;
    uint64_t busy_ns;
    uint64_t submissions;
};

/* Said once under a lease, when draining has taken longer than 200 ms. */
struct gpushare_stuck {
    uint64_t lease;
    uint64_t since_ns; /* when what runs was submitted, at the latest */
    char kernel[112];  /* the function's name, or what else was submitted: "copy", "graph", ... */
};

/* Holds until the next one. Until the first: nothing is bounded, nothing measured. */
struct gpushare_pace {
    uint64_t inflight_ns; /* of own work, as measured, that may be in flight; 0: paused; UINT64_MAX: not bounded */
    uint64_t stall_ns;    /* who could not submit for so long submits one all the same, if the share allows it */
    uint32_t share_ppm;   /* of the wall time, for which own work may be on the GPU; 1000000: all */
    uint32_t meter;       /* 1: measure to the submission, and say METER */
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

/* After it, a parked client counts as hibernated; or it goes on as if there had been no PARK. */
struct gpushare_hibernated {
    uint64_t serial; /* of the PARK */
    uint32_t done;   /* 1: its contexts are off the GPU; 0: it was not to be, and the driver may be called */
    uint32_t pad;
    uint64_t context; /* bytes that they take at least, by measurement: what it needs again; 0: not known */
};

struct gpushare_wake {
    uint64_t serial; /* the client's own */
    uint64_t at_ns;
    uint32_t cause; /* enum gpushare_wake_cause */
    uint32_t pad;
    struct gpushare_usage needs; /* as in PARKED */
};

struct gpushare_awake {
    uint64_t serial; /* of the WAKE; 0: nobody of the client's has asked */
    uint32_t status; /* 0: the driver may be called; else a CUresult: it cannot be woken now, nothing is lost */
    uint32_t moved;  /* 1: what was on GPU `from` is on GPU `to` now */
    uint8_t from[16];
    uint8_t to[16];
    char text[200]; /* if it failed: the sentence for the user */
};

#endif
