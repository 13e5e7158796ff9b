/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph_event.h"

#include "beacon.h"
#include "context.h"
#include "event.h"
#include "graph.h"
#include "graph_exec.h"

#include <stdlib.h>

struct mark {
    bool waits;
    struct sim_event_named named;
    struct sim_point point;         /* of the record, or the point to wait for */
    struct sim_event_record record; /* for a wait: only the number that an interprocess event has to reach */
};

struct sim_marks {
    struct sim_stream *stream; /* the stream of the records' points */
    size_t count, next;
    struct mark items[];
};

static bool is_event(const struct sim_op *op)
{
    return op->kind == SIM_OP_RECORD || op->kind == SIM_OP_WAIT;
}

static bool is_there(const struct sim_event_named *named)
{
    return sim_event_is_open(named->event) && named->event->life == named->life;
}

CUresult sim_marks_new(struct sim_marks **out, struct sim_op *const *ops, size_t count)
{
    size_t events = 0;
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!is_event(ops[i]))
            continue;
        if (!is_there((const struct sim_event_named *)ops[i]->payload))
            return CUDA_ERROR_INVALID_HANDLE;
        events++;
    }
    if (events == 0)
        return CUDA_SUCCESS;
    struct sim_marks *marks = calloc(1, sizeof *marks + events * sizeof marks->items[0]);
    if (marks == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (is_event(ops[i]))
            marks->items[marks->count++] = (struct mark){.waits = ops[i]->kind == SIM_OP_WAIT,
                                                         .named = *(const struct sim_event_named *)ops[i]->payload};
    *out = marks;
    return CUDA_SUCCESS;
}

/* Called with the event's lock held. */
static void begin_wait(struct mark *mark)
{
    struct sim_event *event = mark->named.event;
    mark->point = event->point;
    if (event->beacon == NULL)
        return;
    sim_beacon_retain(event->beacon);
    mark->record = (struct sim_event_record){.beacon = event->beacon, .number = sim_beacon_last(event->beacon)};
}

void sim_marks_begin(struct sim_marks *marks, struct sim_context *context)
{
    if (marks == NULL)
        return;
    marks->stream = sim_stream_open(context, 0, 0, false, true);
    for (size_t i = 0; i < marks->count; i++) {
        struct mark *mark = &marks->items[i];
        struct sim_event *event = mark->named.event;
        pthread_mutex_lock(&event->lock);
        if (is_there(&mark->named)) {
            if (mark->waits) {
                begin_wait(mark);
            } else {
                mark->record = sim_event_begin(event);
                if (marks->stream != NULL)
                    mark->point = sim_stream_promise(marks->stream, 1);
                event->point = mark->point;
            }
        }
        pthread_mutex_unlock(&event->lock);
    }
}

static void reach(const struct mark *mark)
{
    if (mark->record.event != NULL)
        sim_event_reach(&mark->record);
    if (mark->point.stream != NULL)
        sim_point_reach(mark->point);
}

void sim_marks_next(struct sim_marks *marks)
{
    const struct mark *mark = &marks->items[marks->next++];
    if (!mark->waits) {
        reach(mark);
        return;
    }
    if (mark->record.beacon != NULL)
        sim_beacon_wait(mark->record.beacon, mark->record.number);
    else if (mark->point.stream != NULL)
        sim_point_wait(mark->point);
}

void sim_marks_end(struct sim_marks *marks)
{
    if (marks == NULL)
        return;
    for (; marks->next < marks->count; marks->next++)
        if (!marks->items[marks->next].waits)
            reach(&marks->items[marks->next]);
    for (size_t i = 0; i < marks->count; i++)
        sim_event_release(&marks->items[i].record);
    if (marks->stream != NULL)
        sim_stream_close(marks->stream);
    free(marks);
}

/*
 * An invalid event is CUDA_ERROR_INVALID_VALUE when a node is created, and CUDA_ERROR_INVALID_HANDLE when it is
 * changed.
 */
static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event,
                    enum sim_op_kind kind)
{
    struct sim_op *op;
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    CUresult result = sim_op_event(&op, kind, event);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
    return sim_graph_add(node, graph, dependencies, count, op);
}

static CUresult get(CUgraphNode node, CUevent *event, enum sim_op_kind kind)
{
    struct sim_op *op;
    SIM_TRY(sim_node_find(node, kind, &op));
    SIM_REQUIRE(event != NULL);
    *event = (CUevent)((const struct sim_event_named *)op->payload)->event;
    return CUDA_SUCCESS;
}

static CUresult set(CUgraphNode node, CUevent event, enum sim_op_kind kind)
{
    struct sim_op *op;
    SIM_TRY(sim_node_find(node, kind, &op));
    SIM_TRY(sim_op_event(&op, kind, event));
    sim_node_set(node, op);
    return CUDA_SUCCESS;
}

static CUresult exec_set(CUgraphExec exec, CUgraphNode node, CUevent event, enum sim_op_kind kind)
{
    struct sim_op *op;
    SIM_TRY(sim_node_find(node, kind, &op));
    CUresult result = sim_op_event(&op, kind, event);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
    return sim_exec_set(exec, node, op);
}

#define NODE(name, kind)                                                                                               \
    CUresult cuGraphAdd##name##Node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,   \
                                    CUevent event)                                                                     \
    {                                                                                                                  \
        return add(node, graph, dependencies, count, event, kind);                                                     \
    }                                                                                                                  \
    CUresult cuGraph##name##NodeGetEvent(CUgraphNode node, CUevent *event)                                             \
    {                                                                                                                  \
        return get(node, event, kind);                                                                                 \
    }                                                                                                                  \
    CUresult cuGraph##name##NodeSetEvent(CUgraphNode node, CUevent event)                                              \
    {                                                                                                                  \
        return set(node, event, kind);                                                                                 \
    }                                                                                                                  \
    CUresult cuGraphExec##name##NodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)                        \
    {                                                                                                                  \
        return exec_set(exec, node, event, kind);                                                                      \
    }

NODE(EventRecord, SIM_OP_RECORD)
NODE(EventWait, SIM_OP_WAIT)
