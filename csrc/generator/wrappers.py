# SPDX-License-Identifier: BSD-3-Clause
"""The exported functions of the driver that wait while the process is parked, as C."""

from __future__ import annotations

import re

from .declarations import Function, parameter_name
from .files import GENERATED

# After these calls, the process is tied to another process or to another API, and the driver does not checkpoint it.
SHARES = re.compile(
    r"^cu(Ipc(Get|Open)|Mem(Pool)?(Export|Import)|Import|MemGetHandleForAddressRange"
    r"|LogicalEndpoint(Export|Import)|EGLStream\w+Connect|(GL|VDPAU)CtxCreate|G\w*Register)"
)

# In a context that has failed, the driver refuses calls. Where the interposer answers in place of the driver, it first
# asks for the failure. For queries, it relies on failures that are known already. Stream-ordered calls find the
# stream's context first, and ask about that one.
ASKS = re.compile(r"^cu(Mem(Alloc|Free)(?!\w*Async)|MemGetInfo|Ipc)")
LOOKS = re.compile(r"^cuMemGetAddressRange")

# The driver may load code to the GPU.
LOADS = re.compile(r"^cu(ModuleLoad|LibraryLoad|FuncLoad|Launch(Cooperative)?Kernel)")

# The GPU has made progress, so allocations that were freed in stream order may be due.
SHOWS_PROGRESS = re.compile(r"^cu(Ctx|Stream|Event)(Synchronize|Query)")

# These look up a CUDA kernel by its name, by which the interposer recognises NCCL's.
LOOKS_UP = frozenset({"cuLibraryGetKernel", "cuModuleGetFunction"})

# The kind of work that functions of class ``a`` submit (interposer/gate/work.h), by the beginning of the name. A
# function with a CUfunction parameter submits that CUDA kernel.
WORK = [
    (re.compile(pattern), work)
    for pattern, work in (
        (r"cuMemAdvise|cuFlush", "GS_WORK_NONE"),
        (r"cuLaunchHostFunc|cuStream|cu(Signal|Wait)External", "GS_WORK_ORDER"),
        (r"cuLaunch", "GS_WORK_KERNEL"),
        (r"cuMemcpy", "GS_WORK_COPY"),
        (r"cuMemset", "GS_WORK_FILL"),
        (r"cuMem(Prefetch|Discard)", "GS_WORK_PREFETCH"),
    )
]
# Synchronous copies with a destination, a source and a size.
IN_PIECES = re.compile(r"cuMemcpy((HtoD|DtoH|DtoD)_v2)?(_ptds)?")


def stream_argument(function: Function) -> tuple[str, str]:
    """Return the expression of a call's stream, and how to interpret it (enum gs_stream_kind)."""
    per_thread = function.name.endswith(("_ptsz", "_ptds"))
    none = "GS_STREAM_NONE_PTDS" if per_thread else "GS_STREAM_NONE"
    kind = "GS_STREAM_PTSZ" if per_thread else "GS_STREAM_LEGACY"
    for parameter in function.parameters:
        if re.match(r"CUstream\s+\w+$", parameter):
            return parameter_name(function, parameter), kind
        if re.match(r"const CUlaunchConfig\s*\*", parameter):
            name = parameter_name(function, parameter)
            return f"{name} != NULL ? {name}->hStream : NULL", kind
    return "NULL", none


def work_of(function: Function) -> str:
    """Return the expression of what a gated call submits (interposer/gate/work.h)."""
    if function.kind != "a":
        return "GS_WORK_NONE"
    for parameter in function.parameters:
        if re.match(r"CUfunction\s+\w+$", parameter):
            return f"GS_WORK_FUNCTION({parameter_name(function, parameter)})"
    return next((work for name, work in WORK if name.match(function.name)), "GS_WORK_OTHER")


def size_of(function: Function) -> str:
    """Return the expression of the work's size: a kernel's blocks or a copy's bytes; 0 if it is not known."""
    names = [
        parameter_name(function, p) for p in function.parameters if re.fullmatch(r"[\w\s*]+", p)
    ]
    if "gridDimX" in names:
        return "(size_t)gridDimX * gridDimY * gridDimZ"
    if "config" in names:
        blocks = " * ".join(f"config->gridDim{axis}" for axis in "XYZ")
        return f"config != NULL ? (size_t){blocks} : 0"
    return next((name for name in ("ByteCount", "N") if name in names), "0")


def call_lines(function: Function, stream: tuple[str, str], arguments: list[str]) -> list[str]:
    """Return the statements that enter the gate, call the driver and leave."""
    return [
        "    struct gs_slot *gs_entered;",
        "    CUresult gs_result =",
        f"        gs_gate_enter_sized(&gs_entered, {', '.join(stream)}, {work_of(function)}, {size_of(function)});",
        "    if (__builtin_expect(gs_result != CUDA_SUCCESS, 0))",
        "        return gs_result;",
        f"    gs_result = GS_REAL({function.name})({', '.join(arguments)});",
        "    gs_gate_leave(gs_entered);",
    ]


def pieces_lines(function: Function, names: list[str]) -> list[str]:
    """Return the body of a synchronous copy. While work in flight is bounded, long copies are cut into pieces."""
    to, source, size = names
    call = call_lines(function, stream_argument(function), [to, source, "gs_piece"])
    return [
        "    for (;;) {",
        f"    size_t gs_piece = gs_pace_piece({size});",
        *call,
        f"    if (gs_result != CUDA_SUCCESS || gs_piece == {size})",
        "        return gs_result;",
        *(
            f"    {name} = (__typeof__({name}))((uintptr_t){name} + gs_piece);"
            for name in (to, source)
        ),
        f"    {size} -= gs_piece;",
        "    }",
    ]


def hook_lines(function: Function, names: list[str]) -> list[str]:
    """Return the definition of a function's hook, or its declaration if the hook is written by hand."""
    inside = ", ".join(function.parameters) or "void"
    signature = f"CUresult gs_hook_{function.name}({inside})"
    inline = f"__attribute__((always_inline)) static inline {signature}"
    call = f"GS_REAL({function.name})({', '.join(names)})"
    if function.hook == "custom":
        return [f"{signature};"]
    if function.hook == "pass":
        return [inline, "{", f"    return {call};", "}"]
    if function.hook == "refuse":
        refusal = ["    if (gs_session_attached())", "        return CUDA_ERROR_NOT_SUPPORTED;"]
        return [inline, "{", *refusal, f"    return {call};", "}"]
    if IN_PIECES.fullmatch(function.name):
        return [inline, "{", *pieces_lines(function, names), "}"]
    room = [
        "    struct gs_load gs_load;",
        "    if (__builtin_expect(gs_result == CUDA_ERROR_OUT_OF_MEMORY, 0) && gs_memory_begin_load(&gs_load)) {",
        f"        gs_result = {call};",
        "        gs_memory_end_load(&gs_load);",
        "    }",
    ]
    body = call_lines(function, stream_argument(function), names)
    if LOADS.match(function.name):
        body = [*body, *room]
    if function.hook == "loads":
        body = [f"    CUresult gs_result = {call};", *room]
    return [inline, "{", *body, "    return gs_result;", "}"]


def failure_of(function: Function) -> str | None:
    """Return the expression of the error that the function returns if the context has failed."""
    if function.hook != "custom":
        return None
    if ASKS.match(function.name):
        return "gs_context_ask_failure()"
    return "gs_context_known_failure()" if LOOKS.match(function.name) else None


def wrappers_source(functions: list[Function]) -> str:
    """Return the exported functions that wait while the process is parked."""
    lines = [
        GENERATED,
        *(
            f'#include "{name}.h"'
            for name in (
                "gate/awake",
                "base/session",
                "gate/failures",
                "gate/enter",
                "hibernate/hibernate",
                "memory/admission",
                "memory/memory",
                "gate/pace",
                "loader/real",
            )
        ),
        "",
    ]
    for function in functions:
        if not function.waits:
            continue
        names = [parameter_name(function, p) for p in function.parameters]
        failure = failure_of(function)
        shares = [
            "    if (gs_result == CUDA_SUCCESS)",
            "        gs_hibernate_note_sharing();",
        ]
        lines += [
            *hook_lines(function, names),
            "",
            f"CUresult {function.name}({', '.join(function.parameters) or 'void'})",
            "{",
            "    struct gs_slot *gs_called;",
            "    CUresult gs_result = gs_awake_enter(&gs_called);",
            "    if (__builtin_expect(gs_result != CUDA_SUCCESS, 0))",
            "        return gs_result;",
            *(["    gs_hibernate_note_lookup(name);"] if function.name in LOOKS_UP else []),
            *(
                [
                    f"    gs_result = {failure};",
                    "    if (__builtin_expect(gs_result == CUDA_SUCCESS, 1))",
                ]
                if failure is not None
                else []
            ),
            f"    gs_result = gs_hook_{function.name}({', '.join(names)});",
            "    gs_context_observe(gs_result);",
            *(
                ["    if (gs_memory_has_freed())", "        gs_memory_reap();"]
                if SHOWS_PROGRESS.match(function.name)
                else []
            ),
            *(shares if SHARES.match(function.name) else []),
            "    gs_awake_leave(gs_called);",
            "    return gs_result;",
            "}",
            "",
        ]
    return "\n".join(lines)


def hooks_header(functions: list[Function]) -> str:
    """Return a header with the symbols of the custom hooks, which C code defines under the driver's names."""
    lines = [GENERATED, "#ifndef GPUSHARE_REAL_HOOKS_H", "#define GPUSHARE_REAL_HOOKS_H", ""]
    lines += [
        f'extern __typeof__({f.name}) {f.name} __asm__("gs_hook_{f.name}");'
        for f in functions
        if f.hook == "custom" and f.waits
    ]
    return "\n".join([*lines, "", "#endif", ""])
