/* SPDX-License-Identifier: BSD-3-Clause */
/* Reference counts of application objects, which the application and graphs hold. */
#ifndef SIM_USER_OBJECT_H
#define SIM_USER_OBJECT_H

#include "driver.h"

/* The references to one application object, held by the application and by graphs. */
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

/* `count` is the number of references in the call, and is not 0. */
CUresult sim_user_object_find(CUuserObject handle, unsigned count, struct sim_user_object **object);

/* The list takes `count` references: new ones, or (`more` is false) the caller's. False if there is no memory. */
bool sim_user_object_retain(struct sim_retained **list, struct sim_user_object *object, unsigned count, bool more);
void sim_user_object_release(struct sim_user_object *object, unsigned count);

#endif
