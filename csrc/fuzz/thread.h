/* SPDX-License-Identifier: BSD-3-Clause */
/* The operations of a program, and what each of its threads has. */
#ifndef FUZZ_THREAD_H
#define FUZZ_THREAD_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THREADS = 4, SLOTS = 12, STREAMS = 4, GRAPHS = 2, GRAPH_STEPS = 16, READS = 16, PATTERN = 4 << 20 };
enum { LEGACY, NON_BLOCKING, BLOCKING, PER_THREAD };

struct operation {
    unsigned line;
    unsigned thread;
    char name[12];
    unsigned long long n[7];
    char text[160]; /* of `inject` */
};

struct block {
    CUdeviceptr at;
    size_t size, pitch;
    unsigned char *model;
    bool defined; /* the model knows the bytes: fresh memory holds anything */
    unsigned generation;
    int last; /* stream whose work the block's next user has to wait for */
};

/* A read whose bytes are compared once its stream has been waited for. */
struct read {
    unsigned char *found, *expected;
    size_t size;
    unsigned line;
};

/* What a graph does to the model. */
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
    struct operation *operations; /* the whole program's */
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
    char problem[256];
    unsigned problem_line;
};

/* What is wrong with the driver; the first is told. */
__attribute__((format(printf, 2, 3))) void wrong(struct thread *thread, const char *format, ...);

#endif
