# SPDX-License-Identifier: BSD-3-Clause
"""Make the interposer's tables, stubs and wrappers from the headers and ``driver_api.csv``.

The headers say which functions there are and what they look like; the table says what each one is
(``class``) and what is done about it (``hook``). A function that only one of the two knows is an
error, so that a new driver function cannot slip past the gate.

Classes: ``a`` submits work or touches device memory, ``b`` allocates or frees, ``c`` reports
memory, ``d`` synchronises or orders, ``e`` contexts and modules, ``f`` exports or shares, ``g`` host
only.

Hooks: ``gate`` (generated: enter the gate, call, leave), ``custom`` (a C function of the
interposer), ``pass`` (on to the driver), ``refuse`` (CUDA_ERROR_NOT_SUPPORTED while memory is managed by us).

While the process is parked (interposer/gate/awake.h), a call ``waits``, or it ``enters``: what the driver
answers all the same, and what may be called before all else.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ["function", "base", "stream_variant", "class", "hook", "parked", "note"]
CLASSES = frozenset("abcdefg")
# "loads": looks something up, for which the driver may bring code to the GPU. It waits only if there is no room for it.
HOOKS = frozenset({"gate", "loads", "custom", "pass", "refuse"})
PARKED = frozenset({"waits", "enters"})
# Whoever waits for these may be a destructor or a garbage collection: they must never queue.
NEVER_GATED = re.compile(
    r"^cu\w*?(Free|Unload|Destroy|Release|Synchronize|Query|Unmap)(?=$|_|Host|Async)"
)
# Unmapping a graphics resource hands it back to the other API in stream order: work, not a release.
GATED_ALL_THE_SAME = re.compile(r"^cu(Graphics|GL)Unmap")

# What leaves the process tied to another one, or to another API: the driver does not checkpoint it then.
SHARES = re.compile(
    r"^cu(Ipc(Get|Open)|Mem(Pool)?(Export|Import)|Import|MemGetHandleForAddressRange"
    r"|LogicalEndpoint(Export|Import)|EGLStream\w+Connect|(GL|VDPAU)CtxCreate|G\w*Register)"
)

# In a context that has failed the driver refuses these. Where we answer in its place, we ask first; what only looks
# something up goes by what is known already. Stream-ordered calls find the stream's context first, and ask about that.
ASKS = re.compile(r"^cu(Mem(Alloc|Free)(?!\w*Async)|MemGetInfo|Ipc)")
LOOKS = re.compile(r"^cuMemGetAddressRange")

# The driver may bring code to the GPU.
LOADS = re.compile(r"^cu(ModuleLoad|LibraryLoad|FuncLoad|Launch(Cooperative)?Kernel)")

# The GPU has got on: what was freed in the order of a stream may be due.
GETS_ON = re.compile(r"^cu(Ctx|Stream|Event)(Synchronize|Query)")

# A kernel is looked up by its name, which tells NCCL's.
LOOKS_UP = frozenset({"cuLibraryGetKernel", "cuModuleGetFunction"})

# What class ``a`` submits (interposer/gate/work.h), by the beginning of the name; what takes a function is a kernel.
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
# A destination, a source and a size; the caller waits for the end.
IN_PIECES = re.compile(r"cuMemcpy((HtoD|DtoH|DtoD)_v2)?(_ptds)?")

DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
NVML_DECLARATION = re.compile(
    r"\b(?:nvmlReturn_t|const\s+char\s*\*)\s+(nvml[A-Z]\w*)\s*\(([^;{}]*)\)\s*;"
)
GENERATED = (
    "/* SPDX-License-Identifier: BSD-3-Clause */\n/* Made by generate.py; changes are lost. */\n"
)

# The NVML shim's own functions; the rest are jumps.
NVML_CUSTOM = frozenset(
    {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlErrorString"}
    | {
        f"nvmlDeviceGet{kind}RunningProcesses{version}"
        for kind in ("Compute", "Graphics", "MPSCompute")
        for version in ("", "_v2", "_v3")
    }
)


class TableError(Exception):
    """The table and the headers do not go together."""


@dataclass(frozen=True)
class Function:
    """One exported function."""

    name: str
    parameters: tuple[str, ...]
    hook: str = "pass"
    kind: str = "g"
    waits: bool = False

    @property
    def jumps(self) -> bool:
        """Whether its symbol is a jump to the driver."""
        return self.hook == "pass" and not self.waits


# Exported by libnvidia-ml but not declared by nvml.h. nvidia-smi does not start without the first.
NVML_UNDECLARED = (
    "nvmlInternalGetExportTable",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
)


def preprocess(cc: str, header: Path, flags: list[str]) -> str:
    """Return `header` as the compiler sees it."""
    command = [*shlex.split(cc), "-E", "-P", *flags, "-x", "c", str(header)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise TableError(f"{header.name} cannot be read:\n{error.stderr.strip()}") from None
    except OSError as error:
        raise TableError(f"the compiler {cc} cannot be run: {error.strerror}") from None
    return done.stdout


def declarations(text: str, pattern: re.Pattern[str]) -> dict[str, tuple[str, ...]]:
    """Return the functions that `text` declares, with their parameters."""
    found: dict[str, tuple[str, ...]] = {}
    for match in pattern.finditer(text):
        inside = " ".join(match[2].split())
        parameters = () if inside in ("", "void") else tuple(p.strip() for p in inside.split(","))
        found[match[1]] = parameters
    return found


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of the table by function."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise TableError(f"{path.name}: the columns must be {', '.join(COLUMNS)}")
        rows: dict[str, dict[str, str]] = {}
        for row in reader:
            if row["function"] in rows:
                raise TableError(f"{path.name}:{reader.line_num}: {row['function']} is there twice")
            rows[row["function"]] = row
    return rows


def check(rows: dict[str, dict[str, str]], declared: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what is wrong with the table, one sentence for each fault."""
    faults = [
        f"{name}: declared by the headers, but not in the table"
        for name in declared
        if name not in rows
    ]
    for name, row in rows.items():
        kind, hook, parked = row["class"], row["hook"], row["parked"]
        if name not in declared:
            faults.append(f"{name}: in the table, but not declared by the headers")
        if kind not in CLASSES:
            faults.append(f"{name}: class {kind!r} is none of {', '.join(sorted(CLASSES))}")
        if hook not in HOOKS:
            faults.append(f"{name}: hook {hook!r} is none of {', '.join(sorted(HOOKS))}")
        elif parked not in PARKED:
            faults.append(f"{name}: parked {parked!r} is none of {', '.join(sorted(PARKED))}")
        elif parked == "enters" and hook in ("gate", "refuse"):
            faults.append(f"{name}: hook {hook!r} must not enter the driver while parked")
        elif kind == "a" and hook == "pass":
            faults.append(
                f"{name}: submits work or touches device memory (class a), so hook must not be 'pass'"
            )
        elif hook == "gate" and NEVER_GATED.match(name) and not GATED_ALL_THE_SAME.match(name):
            faults.append(f"{name}: frees, destroys or waits, so hook must not be 'gate'")
    return sorted(faults)


def index_header(functions: list[Function], prefix: str, guard: str) -> str:
    """Return the enum of all functions."""
    lines = [
        GENERATED,
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        f"enum {prefix.lower()}index {{",
    ]
    lines += [f"    {prefix}{function.name}," for function in functions]
    lines += [f"    {prefix}COUNT", "};", "", "#endif", ""]
    return "\n".join(lines)


def names_source(functions: list[Function], table: str) -> str:
    """Return the table of names."""
    lines = [
        GENERATED,
        f"extern const char *const {table}[];",
        "",
        f"const char *const {table}[] = {{",
    ]
    lines += [f'    "{function.name}",' for function in functions]
    lines += ["};", ""]
    return "\n".join(lines)


def parameter_name(function: Function, parameter: str) -> str:
    """Return the name of a parameter."""
    match = re.fullmatch(r"[\w\s*]*?[\s*](\w+)", parameter)
    if match is None:
        raise TableError(f"{function.name}: no wrapper can be made for the parameter {parameter!r}")
    return match[1]


def stream_argument(function: Function) -> tuple[str, str]:
    """Return the expression of the stream that a call goes to, and how it is to be read."""
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
    """Return the expression of how much of it there is: a kernel's blocks, a copy's bytes; 0 where nothing says."""
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
    """Return the body of a copy that is waited for: long ones go in pieces while work in flight is bounded."""
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
    """Return the definition of what is done about a function, or its declaration."""
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
    """Return what is exported of the functions that wait while the process is parked."""
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
            "        gs_hibernate_shares();",
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
            *(["    gs_hibernate_looks_up(name);"] if function.name in LOOKS_UP else []),
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
                if GETS_ON.match(function.name)
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
    """Return what makes the interposer's own functions those that the wrappers call, under the driver's names."""
    lines = [GENERATED, "#ifndef GPUSHARE_REAL_HOOKS_H", "#define GPUSHARE_REAL_HOOKS_H", ""]
    lines += [
        f'extern __typeof__({f.name}) {f.name} __asm__("gs_hook_{f.name}");'
        for f in functions
        if f.hook == "custom" and f.waits
    ]
    return "\n".join([*lines, "", "#endif", ""])


def x86_64_stubs(functions: list[Function], p: str) -> list[str]:
    """Return jumps through the table, and the entry that fills it on the first call."""
    lines = []
    for index, function in enumerate(functions):
        if function.jumps:
            lines += [
                f"    .globl {function.name}",
                f"    .type {function.name}, @function",
                "    .p2align 4",
                f"{function.name}:",
                "    .cfi_startproc",
                "    endbr64",
                f"    jmp *{p}table+{8 * index}(%rip)",
                "    .cfi_endproc",
                f"    .size {function.name}, . - {function.name}",
            ]
    lines += ["", "    .p2align 4", f"{p}unresolved_entries:"]
    for index in range(len(functions)):
        lines += [
            "    .p2align 4",
            "    endbr64",
            f"    movl ${index}, %r11d",
            f"    jmp {p}resolve_and_jump",
        ]
    saved = ["rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11"]
    lines += [
        "",
        f"    .type {p}resolve_and_jump, @function",
        f"{p}resolve_and_jump:",
        "    .cfi_startproc",
    ]
    for register in saved:
        lines += [f"    pushq %{register}", "    .cfi_adjust_cfa_offset 8"]
    lines += ["    subq $128, %rsp", "    .cfi_adjust_cfa_offset 128"]
    lines += [f"    movups %xmm{i}, {16 * i}(%rsp)" for i in range(8)]
    lines += [f"    call {p}load"]
    lines += [f"    movups {16 * i}(%rsp), %xmm{i}" for i in range(8)]
    lines += ["    addq $128, %rsp", "    .cfi_adjust_cfa_offset -128"]
    for register in reversed(saved):
        lines += [f"    popq %{register}", "    .cfi_adjust_cfa_offset -8"]
    lines += [f"    leaq {p}table(%rip), %r10", "    jmp *(%r10,%r11,8)", "    .cfi_endproc"]
    lines += [f"    .size {p}resolve_and_jump, . - {p}resolve_and_jump"]
    lines += ["", "    .data", "    .p2align 6", f"    .globl {p}table", f"    .hidden {p}table"]
    lines += [f"    .type {p}table, @object", f"{p}table:"]
    lines += [f"    .quad {p}unresolved_entries + {16 * index}" for index in range(len(functions))]
    lines += [f"    .size {p}table, . - {p}table"]
    return lines + entries(functions, p, ".quad", "@object")


def aarch64_stubs(functions: list[Function], p: str) -> list[str]:
    """Return jumps through the table, and the entry that fills it on the first call."""
    lines = []
    for index, function in enumerate(functions):
        if function.jumps:
            lines += [
                f"    .globl {function.name}",
                f"    .type {function.name}, %function",
                "    .p2align 4",
                f"{function.name}:",
                "    .cfi_startproc",
                "    hint #34",
                f"    adrp x16, {p}table+{8 * index}",
                f"    ldr x16, [x16, :lo12:{p}table+{8 * index}]",
                "    br x16",
                "    .cfi_endproc",
                f"    .size {function.name}, . - {function.name}",
            ]
    lines += ["", "    .p2align 4", f"{p}unresolved_entries:"]
    for index in range(len(functions)):
        lines += [
            "    .p2align 4",
            "    hint #34",
            f"    mov w17, #{index}",
            f"    b {p}resolve_and_jump",
        ]
    pairs = [("x29", "x30"), ("x0", "x1"), ("x2", "x3"), ("x4", "x5"), ("x6", "x7"), ("x8", "x17")]
    frame = 16 * len(pairs) + 16 * 8
    lines += [
        "",
        f"    .type {p}resolve_and_jump, %function",
        f"{p}resolve_and_jump:",
        "    .cfi_startproc",
    ]
    lines += [f"    sub sp, sp, #{frame}", f"    .cfi_adjust_cfa_offset {frame}"]
    lines += [f"    stp {a}, {b}, [sp, #{16 * i}]" for i, (a, b) in enumerate(pairs)]
    lines += [f"    .cfi_offset x29, -{frame}", f"    .cfi_offset x30, -{frame - 8}"]
    lines += [f"    stp q{i}, q{i + 1}, [sp, #{16 * len(pairs) + 16 * i}]" for i in range(0, 8, 2)]
    lines += [f"    bl {p}load"]
    lines += [f"    ldp q{i}, q{i + 1}, [sp, #{16 * len(pairs) + 16 * i}]" for i in range(0, 8, 2)]
    lines += [f"    ldp {a}, {b}, [sp, #{16 * i}]" for i, (a, b) in enumerate(pairs)]
    lines += ["    .cfi_restore x29", "    .cfi_restore x30"]
    lines += [f"    add sp, sp, #{frame}", f"    .cfi_adjust_cfa_offset -{frame}"]
    lines += [f"    adrp x16, {p}table", f"    add x16, x16, :lo12:{p}table"]
    lines += ["    ldr x16, [x16, x17, lsl #3]", "    br x16", "    .cfi_endproc"]
    lines += [f"    .size {p}resolve_and_jump, . - {p}resolve_and_jump"]
    lines += ["", "    .data", "    .p2align 6", f"    .globl {p}table", f"    .hidden {p}table"]
    lines += [f"    .type {p}table, %object", f"{p}table:"]
    lines += [f"    .xword {p}unresolved_entries + {16 * index}" for index in range(len(functions))]
    lines += [f"    .size {p}table, . - {p}table"]
    return lines + entries(functions, p, ".xword", "%object")


def entries(functions: list[Function], p: str, word: str, kind: str) -> list[str]:
    """Return the table of our own addresses: a custom function that nobody defines fails to link."""
    lines = ["", '    .section .data.rel.ro, "aw"', "    .p2align 3", f"    .globl {p}entries"]
    lines += [f"    .hidden {p}entries", f"    .type {p}entries, {kind}", f"{p}entries:"]
    lines += [f"    {word} {function.name}" for function in functions]
    return [*lines, f"    .size {p}entries, . - {p}entries"]


def stubs_source(body: list[str], kind: str) -> str:
    """Return the assembly file around `body`."""
    return "\n".join(
        [GENERATED, "    .text", *body, "", f'    .section .note.GNU-stack, "", {kind}', ""]
    )


def export_map(functions: list[Function], more: list[str]) -> str:
    """Return the linker's version script."""
    names = "".join(f"        {name};\n" for name in [*(f.name for f in functions), *more])
    return f"{{\n    global:\n{names}    local:\n        *;\n}};\n"


def write(path: Path, text: str) -> None:
    """Write `text`, unless it is there already: what depends on it need not be made again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_all(
    out: Path, functions: list[Function], prefix: str, stem: str, more: list[str]
) -> None:
    """Write what the driver's and NVML's shim have in common."""
    p = f"gs_{stem}"
    write(
        out / f"{stem}index.h", index_header(functions, prefix, f"GPUSHARE_{stem.upper()}INDEX_H")
    )
    write(out / f"{stem}names.c", names_source(functions, f"{p}names"))
    write(out / f"{stem}stubs_x86_64.S", stubs_source(x86_64_stubs(functions, p), "@progbits"))
    write(out / f"{stem}stubs_aarch64.S", stubs_source(aarch64_stubs(functions, p), "%progbits"))
    write(out / f"{stem}exports.map", export_map(functions, more))


def generate_driver(options: argparse.Namespace) -> None:
    """Write the driver shim's files."""
    here = Path(__file__).resolve().parent / "compat" / "interop"
    flags = [
        "-D__CUDA_API_VERSION_INTERNAL",
        f"-I{here}",
        *(f"-I{path}" for path in options.include),
    ]
    declared = declarations(preprocess(options.cc, here / "driver.h", flags), DECLARATION)
    rows = read_table(options.table)
    faults = check(rows, declared)
    if faults:
        raise TableError(
            "\n".join([f"{options.table.name} and the driver's headers differ:", *faults])
        )
    functions = [
        Function(
            name,
            declared[name],
            rows[name]["hook"],
            rows[name]["class"],
            rows[name]["parked"] == "waits",
        )
        for name in sorted(declared)
    ]
    write_all(options.out, functions, "GS_FN_", "real_", ["gpushare_*"])
    write(options.out / "entries.c", wrappers_source(functions))
    write(options.out / "real_hooks.h", hooks_header(functions))


def generate_nvml(options: argparse.Namespace) -> None:
    """Write the NVML shim's files."""
    flags = ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"]
    declared = declarations(preprocess(options.cc, options.nvml, flags), NVML_DECLARATION)
    declared |= dict.fromkeys(NVML_UNDECLARED, ())
    lacking = NVML_CUSTOM - set(declared)
    if lacking:
        raise TableError(f"{options.nvml.name} lacks {', '.join(sorted(lacking))}")
    functions = [
        Function(name, declared[name], "custom" if name in NVML_CUSTOM else "pass")
        for name in sorted(declared)
    ]
    write_all(options.out, functions, "GS_NVML_", "nvml_", ["gpushare_nvml_shim"])


def main(arguments: list[str] | None = None) -> int:
    """Run the generator."""
    parser = argparse.ArgumentParser(
        description="Make the interposer's tables, stubs and wrappers."
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for what is made")
    parser.add_argument("--cc", default="cc", help="C compiler that preprocesses the headers")
    parser.add_argument(
        "--include", type=Path, action="append", required=True, help="directory of cuda.h"
    )
    parser.add_argument("--nvml", type=Path, required=True, help="path of nvml.h")
    parser.add_argument(
        "--table",
        type=Path,
        default=Path(__file__).with_name("driver_api.csv"),
        help="table of driver functions",
    )
    options = parser.parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        generate_driver(options)
        generate_nvml(options)
    except (TableError, OSError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
