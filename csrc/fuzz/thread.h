/* SPDX-License-Identifier: BSD-3-Clause */
/* The operations of a program, and the state of each of its threads. */
#ifndef FUZZ_THREAD_H
#define FUZZ_THREAD_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    THREADS = 4,
    SLOTS = 12,
    STREAMS = 4,
    GRAPHS = 2,
    GRAPH_STEPS = 16,
    READS = 16,
    PATTERN = 4 << 20,
    UNIT = 2 << 20
};
enum { LEGACY, NON_BLOCKING, BLOCKING, PER_THREAD };

struct operation {
    unsigned line;
    unsigned thread;
    char name[12];
    unsigned long long n[7];
    char text[160]; /* for `inject` */
};

struct block {
    CUdeviceptr at;
    size_t size, pitch;
    unsigned char *model;
    bool defined; /* the model knows the bytes; new memory can contain anything */
    unsigned generation;
    int last; /* the stream whose work the next user of the block has to wait for */
};

/* A read whose bytes are compared after its stream was waited for. */
struct read {
    unsigned char *found, *expected;
    size_t size;
    unsigned line;
};

/* The effect of a graph on the model. */
struct step {
    struct operation operation;
    unsigned generations[2];
};

struct graph {
    CUgraphExec executable;
    struct step steps[GRAPH_STEPS];
    unsigned count;
};

struct thread {
    pthread_t self;
    unsigned number;
    struct operation *operations; /* of the whole program */
    unsigned count;
    struct block blocks[SLOTS];
    CUstream streams[STREAMS];
    CUevent event;
    struct graph graphs[GRAPHS];
    struct graph *capturing;
    struct read reads[READS];
    unsigned read_count;
    const struct operation *current;
    uint64_t done, refused, bytes, compared;
    uint64_t touched, hashed; /* touches that changed something, and evictions that hashed something */
    char problem[256];
    unsigned problem_line;
};

/* Reports an error of the driver. Only the first is printed. */
__attribute__((format(printf, 2, 3))) void wrong(struct thread *thread, const char *format, ...);

#endif
