# SPDX-License-Identifier: BSD-3-Clause
"""The exported functions that only jump to the driver, and the table of functions, in assembly language."""

from __future__ import annotations

from .declarations import Function
from .files import GENERATED


def exported(name: str, instructions: list[str], kind: str) -> list[str]:
    """Return an exported function that consists of these instructions."""
    return [
        f"    .globl {name}",
        f"    .type {name}, {kind}",
        "    .p2align 4",
        f"{name}:",
        "    .cfi_startproc",
        *instructions,
        "    .cfi_endproc",
        f"    .size {name}, . - {name}",
    ]


def x86_64_stubs(functions: list[Function], p: str) -> list[str]:
    """Return jumps through the table, and the entry that fills it on the first call."""
    lines = []
    for index, function in enumerate(functions):
        if function.jumps:
            jump = [
                "    endbr64",
                f"    jmp *{p}table+{8 * index}(%rip)",
            ]
            lines += exported(function.name, jump, "@function")
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
    return lines + tables(functions, p, ".quad", "@object")


def aarch64_stubs(functions: list[Function], p: str) -> list[str]:
    """Return jumps through the table, and the entry that fills it on the first call."""
    lines = []
    for index, function in enumerate(functions):
        if function.jumps:
            jump = [
                "    hint #34",
                f"    adrp x16, {p}table+{8 * index}",
                f"    ldr x16, [x16, :lo12:{p}table+{8 * index}]",
                "    br x16",
            ]
            lines += exported(function.name, jump, "%function")
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
    return lines + tables(functions, p, ".xword", "%object")


def tables(functions: list[Function], p: str, word: str, kind: str) -> list[str]:
    """
    Return the table that the stubs jump through, and the table of the exported functions.

    If a custom function is not defined, linking fails.
    """
    lines = ["", "    .data", "    .p2align 6", f"    .globl {p}table", f"    .hidden {p}table"]
    lines += [f"    .type {p}table, {kind}", f"{p}table:"]
    lines += [f"    {word} {p}unresolved_entries + {16 * index}" for index in range(len(functions))]
    lines += [f"    .size {p}table, . - {p}table"]
    lines += ["", '    .section .data.rel.ro, "aw"', "    .p2align 3", f"    .globl {p}entries"]
    lines += [f"    .hidden {p}entries", f"    .type {p}entries, {kind}", f"{p}entries:"]
    lines += [f"    {word} {function.name}" for function in functions]
    return [*lines, f"    .size {p}entries, . - {p}entries"]


def stubs_source(body: list[str], kind: str) -> str:
    """Return the assembly file around `body`."""
    return "\n".join(
        [GENERATED, "    .text", *body, "", f'    .section .note.GNU-stack, "", {kind}', ""]
    )
