/* SPDX-License-Identifier: BSD-3-Clause */
#include "user_object.h"

#include <stdlib.h>

#define OBJECT_MAGIC UINT64_C(0x53494d4f424a5431)

void sim_user_object_release(struct sim_user_object *object, unsigned count)
{
    if (__atomic_sub_fetch(&object->references, count, __ATOMIC_ACQ_REL) != 0)
        return;
    object->magic = 0;
    object->destroy(object->pointer);
    free(object);
}

bool sim_user_object_retain(struct sim_retained **list, struct sim_user_object *object, unsigned count, bool more)
{
    struct sim_retained *retained = malloc(sizeof *retained);
    if (retained == NULL)
        return false;
    if (more)
        __atomic_add_fetch(&object->references, count, __ATOMIC_RELAXED);
    *retained = (struct sim_retained){*list, object, count};
    *list = retained;
    return true;
}

CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned count, unsigned flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && destroy != NULL && count > 0 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    struct sim_user_object *object = malloc(sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object = (struct sim_user_object){OBJECT_MAGIC, pointer, destroy, count};
    *out = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult sim_user_object_find(CUuserObject handle, unsigned count, struct sim_user_object **object)
{
    SIM_ENTER();
    *object = (struct sim_user_object *)handle;
    return handle != NULL && (*object)->magic == OBJECT_MAGIC && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count)
{
    struct sim_user_object *object;
    SIM_TRY(sim_user_object_find(handle, count, &object));
    __atomic_add_fetch(&object->references, count, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count)
{
    struct sim_user_object *object;
    SIM_TRY(sim_user_object_find(handle, count, &object));
    sim_user_object_release(object, count);
    return CUDA_SUCCESS;
}
