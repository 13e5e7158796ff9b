/* SPDX-License-Identifier: BSD-3-Clause */
/* References to what is the application's, which it and graphs hold. */
#ifndef SIM_USER_OBJECT_H
#define SIM_USER_OBJECT_H

#include "driver.h"

/* A reference to something of the application's, counted: by itself and by graphs. */
struct sim_user_object {
    uint64_t magic;
    void *pointer;
    CUhostFn destroy;
    unsigned references;
};

struct sim_retained {
    struct sim_retained *next;
    struct sim_user_object *object;
    unsigned count;
};

/* `count` is how many references the call is about, and not 0. */
CUresult sim_user_object_find(CUuserObject handle, unsigned count, struct sim_user_object **object);

/* The list holds `count` references, of its own or (`more` is false) the caller's. False if there is no memory. */
bool sim_user_object_retain(struct sim_retained **list, struct sim_user_object *object, unsigned count, bool more);
void sim_user_object_release(struct sim_user_object *object, unsigned count);

#endif
