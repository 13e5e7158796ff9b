/* SPDX-License-Identifier: BSD-3-Clause */
#include "conditional.h"

#include "context.h"
#include "kernel_abi.h"

#include <stdlib.h>
#include <string.h>

#define CONDITION_MAGIC UINT64_C(0x53494d434f4e4431)

/* Never freed, because running kernels may write to it; reused instead. */
struct sim_condition {
    struct gpushare_sim_condition cell; /* what the handle points to */
    uint64_t magic;
    struct sim_condition *next; /* next condition of the graph, or next unused one */
    const void *graph;          /* only compared */
    const struct sim_context *context;
    unsigned initial;
    bool begins;         /* set to the initial value at each launch */
    unsigned references; /* from its graph and operations */
    unsigned nodes, executables;
};

struct conditional {
    struct sim_condition *condition;
    CUgraphConditionalNodeType type;
    bool is_node;
    unsigned size;
    struct sim_body bodies[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards conditions, except their values */
static struct sim_condition *unused;

static struct conditional *conditional_of(const struct sim_op *op)
{
    return (struct conditional *)(uintptr_t)op->payload;
}

CUresult sim_condition_add(struct sim_condition **conditions, const void *graph, CUcontext context_handle,
                           unsigned initial, unsigned flags, CUgraphConditionalHandle *handle)
{
    struct sim_context *context;
    SIM_REQUIRE(handle != NULL && (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT) == 0);
    SIM_TRY(sim_context_resolve(context_handle, &context));
    pthread_mutex_lock(&lock);
    struct sim_condition *condition = unused;
    if (condition != NULL)
        unused = condition->next;
    pthread_mutex_unlock(&lock);
    if (condition == NULL)
        condition = malloc(sizeof *condition);
    if (condition == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *condition = (struct sim_condition){.magic = CONDITION_MAGIC,
                                        .next = *conditions,
                                        .graph = graph,
                                        .context = context,
                                        .initial = initial,
                                        .begins = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0,
                                        .references = 1};
    *conditions = condition;
    *handle = (uintptr_t)condition;
    return CUDA_SUCCESS;
}

/* Called with the lock held. */
static void release(struct sim_condition *condition)
{
    if (--condition->references > 0)
        return;
    condition->magic = 0;
    condition->next = unused;
    unused = condition;
}

void sim_conditions_release(struct sim_condition *conditions)
{
    pthread_mutex_lock(&lock);
    for (struct sim_condition *condition = conditions, *next; condition != NULL; condition = next) {
        next = condition->next;
        condition->graph = NULL;
        release(condition);
    }
    pthread_mutex_unlock(&lock);
}

bool sim_conditions_are_used(const struct sim_condition *conditions)
{
    bool used = true;
    pthread_mutex_lock(&lock);
    for (; conditions != NULL; conditions = conditions->next)
        used = used && conditions->nodes > 0;
    pthread_mutex_unlock(&lock);
    return used;
}

static void release_body(struct sim_body *body)
{
    for (size_t i = 0; i < body->count; i++)
        sim_op_release(body->ops[i]);
    free(body->ops);
    free(body->nodes);
}

static void dispose(struct sim_op *op)
{
    struct conditional *conditional = conditional_of(op);
    for (unsigned i = 0; i < conditional->size; i++)
        release_body(&conditional->bodies[i]);
    pthread_mutex_lock(&lock);
    if (conditional->is_node)
        conditional->condition->nodes--;
    release(conditional->condition);
    pthread_mutex_unlock(&lock);
}

static CUresult run_body(struct sim_context *context, const struct sim_body *body)
{
    for (size_t i = 0; i < body->count; i++)
        SIM_TRY(body->ops[i]->run(context, body->ops[i]));
    return CUDA_SUCCESS;
}

static unsigned value_of(const struct conditional *conditional)
{
    return __atomic_load_n(&conditional->condition->cell.value, __ATOMIC_ACQUIRE);
}

static CUresult run(struct sim_context *context, struct sim_op *op)
{
    const struct conditional *conditional = conditional_of(op);
    if (conditional->type == CU_GRAPH_COND_TYPE_WHILE) {
        /* A loop in a context that has failed meanwhile does not continue for ever. */
        while (value_of(conditional) != 0 && sim_context_error(context) == CUDA_SUCCESS)
            SIM_TRY(run_body(context, &conditional->bodies[0]));
        return CUDA_SUCCESS;
    }
    unsigned chosen = value_of(conditional);
    if (conditional->type == CU_GRAPH_COND_TYPE_IF)
        chosen = chosen == 0;
    return chosen < conditional->size ? run_body(context, &conditional->bodies[chosen]) : CUDA_SUCCESS;
}

/* The operation owns a reference to the condition. */
static struct sim_op *op_new(struct sim_condition *condition, CUgraphConditionalNodeType type, unsigned size,
                             bool is_node)
{
    size_t payload = sizeof(struct conditional) + size * sizeof(struct sim_body);
    struct sim_op *op = sim_op_new(SIM_OP_CONDITIONAL, payload, run);
    if (op == NULL)
        return NULL;
    struct conditional *conditional = conditional_of(op);
    memset(conditional, 0, payload);
    *conditional = (struct conditional){.condition = condition, .type = type, .is_node = is_node, .size = size};
    op->dispose = dispose;
    pthread_mutex_lock(&lock);
    condition->references++;
    condition->nodes += is_node;
    pthread_mutex_unlock(&lock);
    return op;
}

static bool is_size(CUgraphConditionalNodeType type, unsigned size)
{
    switch (type) {
    case CU_GRAPH_COND_TYPE_IF:
        return size == 1 || size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return size > 0;
    default:
        return false;
    }
}

CUresult sim_op_conditional(struct sim_op **op, const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct sim_context *context;
    struct sim_condition *condition = (struct sim_condition *)(uintptr_t)p->handle;
    SIM_REQUIRE(condition != NULL && condition->magic == CONDITION_MAGIC && is_size(p->type, p->size));
    SIM_TRY(sim_context_resolve(p->ctx, &context));
    SIM_REQUIRE(condition->context == context);
    *op = op_new(condition, p->type, p->size, true);
    return *op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

unsigned sim_conditional_size(const struct sim_op *op)
{
    return conditional_of(op)->size;
}

const void *sim_conditional_graph(const struct sim_op *op)
{
    return conditional_of(op)->condition->graph;
}

CUresult sim_conditional_copy(struct sim_op **copy, const struct sim_op *op)
{
    const struct conditional *conditional = conditional_of(op);
    *copy = op_new(conditional->condition, conditional->type, conditional->size, false);
    return *copy == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void sim_conditional_put(struct sim_op *op, unsigned number, struct sim_body body)
{
    conditional_of(op)->bodies[number] = body;
}

typedef bool (*visitor)(struct sim_condition *condition);

/* Visits all conditions, including those in bodies, until `look` returns false. Called with the lock held. */
static bool visit(struct sim_op *const *ops, size_t count, visitor look)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i]->kind != SIM_OP_CONDITIONAL)
            continue;
        const struct conditional *conditional = conditional_of(ops[i]);
        if (!look(conditional->condition))
            return false;
        for (unsigned k = 0; k < conditional->size; k++)
            if (!visit(conditional->bodies[k].ops, conditional->bodies[k].count, look))
                return false;
    }
    return true;
}

static bool is_free(struct sim_condition *condition)
{
    return condition->executables == 0;
}

static bool take(struct sim_condition *condition)
{
    condition->executables++;
    return true;
}

static bool leave(struct sim_condition *condition)
{
    condition->executables--;
    return true;
}

static bool begin(struct sim_condition *condition)
{
    if (condition->begins)
        __atomic_store_n(&condition->cell.value, condition->initial, __ATOMIC_RELEASE);
    return true;
}

bool sim_conditional_instantiate(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    bool first = visit(ops, count, is_free) && visit(ops, count, take);
    pthread_mutex_unlock(&lock);
    return first;
}

void sim_conditional_abandon(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    visit(ops, count, leave);
    pthread_mutex_unlock(&lock);
}

void sim_conditional_begin(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    visit(ops, count, begin);
    pthread_mutex_unlock(&lock);
}

static bool copy_body(struct sim_body *to, const struct sim_body *from)
{
    *to = (struct sim_body){.ops = malloc((from->count + 1) * sizeof *to->ops),
                            .nodes = malloc((from->count + 1) * sizeof *to->nodes)};
    if (to->ops == NULL || to->nodes == NULL)
        return false;
    to->count = from->count;
    for (size_t i = 0; i < from->count; i++) {
        __atomic_add_fetch(&from->ops[i]->references, 1, __ATOMIC_RELAXED);
        to->ops[i] = from->ops[i];
        to->nodes[i] = from->nodes[i];
    }
    return true;
}

/* True if the node was there; then it has taken ownership of the reference. */
static bool replace_in(struct sim_body *body, const void *node, struct sim_op *by)
{
    for (size_t i = 0; i < body->count; i++) {
        struct sim_op *other = NULL;
        if (body->nodes[i] == node)
            other = by;
        else if (body->ops[i]->kind == SIM_OP_CONDITIONAL)
            other = sim_conditional_replace(body->ops[i], node, by);
        if (other == NULL)
            continue;
        sim_op_release(body->ops[i]);
        body->ops[i] = other;
        return true;
    }
    return false;
}

struct sim_op *sim_conditional_replace(const struct sim_op *op, const void *node, struct sim_op *by)
{
    struct sim_op *copy;
    if (sim_conditional_copy(&copy, op) != CUDA_SUCCESS)
        return NULL;
    const struct conditional *from = conditional_of(op);
    struct conditional *to = conditional_of(copy);
    bool done = false, copied = true;
    for (unsigned i = 0; i < from->size && copied; i++)
        copied = copy_body(&to->bodies[i], &from->bodies[i]);
    for (unsigned i = 0; i < to->size && copied && !done; i++)
        done = replace_in(&to->bodies[i], node, by);
    if (done)
        return copy;
    sim_op_release(copy);
    return NULL;
}

bool sim_conditional_is_alike(const struct sim_op *a, const struct sim_op *b)
{
    const struct conditional *one = conditional_of(a), *other = conditional_of(b);
    bool alike = one->condition == other->condition && one->type == other->type && one->size == other->size;
    for (unsigned i = 0; alike && i < one->size; i++) {
        const struct sim_body *body = &one->bodies[i], *twin = &other->bodies[i];
        alike = body->count == twin->count;
        for (size_t k = 0; alike && k < body->count; k++)
            alike = body->ops[k]->kind == twin->ops[k]->kind &&
                    (body->ops[k]->kind != SIM_OP_CONDITIONAL || sim_conditional_is_alike(body->ops[k], twin->ops[k]));
    }
    return alike;
}
