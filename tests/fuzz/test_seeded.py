# SPDX-License-Identifier: BSD-3-Clause
"""The fuzzer finds seeded bugs of the interposer: one of each kind that could harm a user's data.

Each is a change of a few words in a copy of the sources. Where a change makes wrong only what happens within some
nanoseconds, another one, harmless by itself, makes these longer. The simulated driver has one fault more: digests that
ignore a byte.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyter_gpushare import LIBRARIES
from tests.fuzz.evictions import places
from tests.fuzz.random_programs import EVICTIONS, PATIENCE, Recipe, fuzz
from tests.support.ground import MIB, Figures, Ground
from tests.support.workshop import Patch, Workshop, patched

#: A thread that has found the gate open takes its time before it submits.
WIDE = (
    "interposer/gate/enter.h",
    "            *entered = slot;\n            return CUDA_SUCCESS;",
    "            *entered = slot;\n"
    "            if ((slot->passes & 63) == 1)\n                usleep(4000);\n"
    "            return CUDA_SUCCESS;",
)
#: Host memory that is released is overwritten at once, as if another had got it, and no copy is kept.
OVERWRITTEN = (
    "interposer/memory/host_place.c",
    "    gpushare_pool_release(shared_of(pool, number), number % GS_HOST_UNITS, pool->user, now());\n",
    "    if (gpushare_pool_users(shared_of(pool, number), number % GS_HOST_UNITS) == pool->user) {\n"
    "        gpushare_pool_spoil(shared_of(pool, number), number % GS_HOST_UNITS);\n"
    "        __builtin_memset(pool->data + (size_t)number * GS_HOST_UNIT, 0xa5, GS_HOST_UNIT);\n"
    "    }\n"
    "    gpushare_pool_release(shared_of(pool, number), number % GS_HOST_UNITS, pool->user, now());\n",
)
WIDE_INCLUDE = (
    "interposer/gate/enter.h",
    "#include <stdint.h>",
    "#include <stdint.h>\n#include <unistd.h>",
)


@dataclass(frozen=True)
class Bug:
    """A change of the sources, and what to run so that it shows.

    Attributes
    ----------
    patches
        File, old text (which is there once), new text.
    recipe
        What the programs consist of.
    rules
        Failures that are injected into every program.
    environ
        How slow the simulated GPU is.
    """

    patches: tuple[Patch, ...]
    recipe: Recipe = field(default_factory=lambda: Recipe(operations=600, asks=0.03))
    rules: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()


#: What all programs here are made from.
SEED = "seeded"
SLOW_KERNELS = (("GPUSHARE_SIM_KERNEL_NS", "1000000"),)
SLOWER_KERNELS = (("GPUSHARE_SIM_KERNEL_NS", "5000000"),)
SLOW_COPIES = (("GPUSHARE_SIM_BANDWIDTH", "500000000"),)
LANE = "interposer/memory/lane.c"
MOVER = "interposer/memory/mover.c"
MAPPED = "interposer/backends/mapped.c"
COPY_IN = "        result = gs_piece_copy_in(&block->pieces[i], address, stream);\n"
#: Waits for the copies of one direction only.
EARLY = """    const struct gs_flight *next = &lane->flights[lane->first];
    bool waits = next->block->pieces[next->piece].state {} GS_PIECE_RESIDENT;
    if (*result == CUDA_ERROR_NOT_READY && waits)
        return NULL;
    *result = *result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : *result;
"""

BUGS = {
    "the gate does not wait for who is inside": Bug(
        (
            WIDE,
            WIDE_INCLUDE,
            (
                "interposer/gate/slots.c",
                "        if (__atomic_load_n(&slot->passes, __ATOMIC_ACQUIRE) & 1)\n            return false;",
                "        (void)slot;",
            ),
        ),
        Recipe(operations=600, asks=0.03, threads=2),
    ),
    "evicted before the work is done": Bug(
        (
            (
                "interposer/client/lease.c",
                "step == RELEASE_DRAIN && gs_context_drained()",
                "step == RELEASE_DRAIN",
            ),
        ),
        environ=SLOWER_KERNELS,
    ),
    "freed before the work is done": Bug(
        (
            (
                "interposer/memory/memory.c",
                "== GS_GATE_SHUT && empty && !gs_promises()->leased()",
                "!= GS_GATE_PLAIN",
            ),
        ),
        environ=SLOW_KERNELS,
    ),
    "copied back never": Bug(
        ((MAPPED, COPY_IN, "            (void)stream;\n"),),
    ),
    "resident before it has arrived": Bug(
        (
            (
                LANE,
                "    if (*result == CUDA_ERROR_NOT_READY)\n        return NULL;\n",
                EARLY.format("=="),
            ),
        ),
        environ=SLOW_COPIES,
    ),
    "unmapped before it has left": Bug(
        (
            (
                LANE,
                "    if (*result == CUDA_ERROR_NOT_READY)\n        return NULL;\n",
                EARLY.format("!="),
            ),
        ),
        environ=SLOW_COPIES,
    ),
    "opened with a block missing": Bug(
        (
            (
                MOVER,
                "complete = !block->moving && settled_locked(device, block, i, rooms[d]);",
                "complete = block->next == NULL || "
                "(!block->moving && settled_locked(device, block, i, rooms[d]));",
            ),
        ),
    ),
    "discarded though written": Bug(
        (
            (
                MOVER,
                "bool unwritten = taken && block->pieces[i].untouched == gs_gate_submissions();",
                "bool unwritten = taken;",
            ),
        ),
    ),
    "two pieces' host memory exchanged": Bug(
        (
            (
                MAPPED,
                COPY_IN,
                COPY_IN.replace(
                    "&block->pieces[i]",
                    "&block->pieces[(i ^ 1) < block->piece_count && block->pieces[i ^ 1].host != NULL ? i ^ 1 : i]",
                ),
            ),
        ),
        Recipe(operations=600, asks=0.03, largest=40 * MIB),
    ),
    "what failed to arrive taken as whole": Bug(
        (
            (
                MAPPED,
                COPY_IN,
                COPY_IN + "    result = CUDA_SUCCESS;\n",
            ),
        ),
        rules=("cuMemcpyHtoDAsync%gpushare@0.2",),
    ),
    "what failed to leave taken as whole": Bug(
        (
            (
                MAPPED,
                "    result = gs_piece_copy_out(&block->pieces[i], address, stream);",
                "    gs_piece_copy_out(&block->pieces[i], address, stream);",
            ),
        ),
        rules=("cuMemcpyDtoHAsync%gpushare@0.2",),
    ),
    "host memory given back before the copy back is done": Bug(
        (
            OVERWRITTEN,
            (
                MOVER,
                "        block->backend->abort_in(block, i);\n    return result;\n}",
                "        block->backend->abort_in(block, i);\n    gs_piece_release_host(piece);\n    return result;\n}",
            ),
        ),
        environ=SLOW_COPIES,
    ),
    "held again though others have changed it": Bug(
        (
            (
                "interposer/memory/host_place.c",
                "(generation == NULL || gpushare_pool_generation(shared, unit) == *generation)",
                "(generation != NULL || gpushare_pool_generation(shared, unit) != 0)",
            ),
            (
                "pool.h",
                "        equal = equal && "
                "__atomic_load_n(&chunk->units[unit].digest[i], __ATOMIC_RELAXED) == digest[i];",
                "        (void)digest;",
            ),
        ),
        Recipe(operations=600, asks=0.1),
    ),
    "zeros come back as anything": Bug(
        (
            (
                "interposer/memory/block.c",
                "GS_REAL(cuMemsetD8Async)(address + extent.offset, 0, extent.bytes, stream)",
                "CUDA_SUCCESS",
            ),
        ),
        EVICTIONS,
    ),
    "published before it is copied": Bug(
        (
            (
                "interposer/memory/outward.c",
                "    result = block->backend->start_out(block, flight->piece, lane->stream);\n",
                "    struct gs_host_digests digests = digests_of(flight);\n"
                "    gs_host_publish(block->pieces[flight->piece].host, &digests);\n"
                "    result = block->backend->start_out(block, flight->piece, lane->stream);\n",
            ),
        ),
        Recipe(operations=600, asks=0.1),
    ),
}


def look(folder: Path, bug: Bug, seconds: float, patience: float) -> str | None:
    """Run programs for so many seconds at most, each for ``patience``; return what was found."""
    recipe = Recipe(**{**vars(bug.recipe), "rules": bug.rules})
    with contextlib.closing(Ground(48 * MIB, folder, **dict(bug.environ))) as ground:
        ground.start_scheduler()
        found = fuzz(
            ground,
            Figures(),
            seed=SEED,
            recipes=[recipe],
            processes=2,
            seconds=seconds,
            patience=patience,
        )
    return None if found is None else found.text


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_the_sources(root: Path, name: str) -> None:
    assert patched(root / "csrc", BUGS[name].patches)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_found(workshop: Workshop, name: str) -> None:
    assert look(workshop.build(BUGS[name].patches), BUGS[name], 120, 20) is not None


#: A byte of each unit that digests ignore. One of them is enough for the fast tests.
PLACES = [
    pytest.param(place, marks=[pytest.mark.slow] if number else [])
    for number, place in enumerate(places(SEED))
]


@pytest.mark.parametrize("ignored", PLACES)
def test_a_digest_that_ignores_one_byte_is_found(ignored: int) -> None:
    bug = Bug((), EVICTIONS, environ=(("GPUSHARE_SIM_DIGEST_IGNORES", str(ignored)),))
    found = look(LIBRARIES, bug, 120, PATIENCE)
    assert found is not None
    assert " differ" in found


#: Of what the bugs consist apart from the wrong words: all at once, once as fast as it can and once slowly.
HARMLESS = {
    "failures": Bug(
        (OVERWRITTEN, WIDE, WIDE_INCLUDE),
        Recipe(operations=300, asks=0.03, threads=2, largest=40 * MIB),
        rules=("cuMemcpyHtoDAsync%gpushare@0.2", "cuMemcpyDtoHAsync%gpushare@0.2"),
    ),
    "evictions": Bug((OVERWRITTEN,), EVICTIONS),
    "slow": Bug((OVERWRITTEN,), environ=(*SLOW_KERNELS, *SLOW_COPIES)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_nothing_is_found_without_a_bug(workshop: Workshop, name: str) -> None:
    assert look(workshop.build(HARMLESS[name].patches), HARMLESS[name], 4, PATIENCE) is None
