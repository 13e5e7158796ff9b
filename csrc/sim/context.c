/* SPDX-License-Identifier: BSD-3-Clause */
#include "context.h"

CUresult sim_process_error;
__thread struct sim_context *sim_context_current;

CUresult sim_context_alive(const struct sim_context *context)
{
    if (context->magic == SIM_CONTEXT_MAGIC)
        return CUDA_SUCCESS;
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_context_enter(struct sim_context **context)
{
    SIM_ENTER();
    struct sim_context *current = sim_context_current;
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current->magic != SIM_CONTEXT_MAGIC)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = current;
    return sim_context_error(current);
}

CUresult sim_context_resolve(CUcontext handle, struct sim_context **context)
{
    SIM_ENTER();
    *context = handle == NULL ? sim_context_current : (struct sim_context *)handle;
    if (*context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_context_alive(*context);
}
