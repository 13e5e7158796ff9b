# SPDX-License-Identifier: BSD-3-Clause
"""Puts defects into the interposer, one at a time, and measures how soon the tester finds each.

    python -m tests.differential.seeds                    # all, three times each, as a table
    python -m tests.differential.seeds --only 3,11 --runs 1 --show
    python -m tests.differential.seeds --without-defects  # the same programs on the sources as they are

Exit status: 0 if each was found (or, without defects, none was), 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_gpushare import LIBRARIES
from tests.support.folders import socket_folder
from tests.support.workshop import Patch, Workshop

from .fuzzing import Finding, Totals, fuzz, report
from .programs import Recipe
from .running import Places, build_player, place

#: Seconds in which the tester has to find a defect, on two cores.
LIMIT = 300.0
JOBS = 2
#: Seconds after which a program counts as hung.
PATIENCE = 30.0


@dataclass(frozen=True)
class Defect:
    """A defect, how it is put into the sources, and which programs look for it.

    Attributes
    ----------
    what
        What is wrong, in one line.
    change
        What the patches do.
    patches
        Of the interposer: file, old text, new text.
    scheduler
        Python that the scheduler executes when it starts.
    recipe
        What the programs are made of.
    calm
        Only the programs themselves take the GPU away.
    environ
        More environment of all processes.
    """

    what: str
    change: str
    recipe: Recipe
    patches: tuple[Patch, ...] = ()
    scheduler: str = ""
    calm: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


def _in(file: str, old: str, new: str) -> Patch:
    return f"interposer/{file}", old, new


_SLEEPS = "#include <stdlib.h>"
_SLOW_KERNELS = ("0 slow 2000000",)

#: The first twelve were real defects once, the others never.
DEFECTS: dict[str, Defect] = {
    "1": Defect(
        "what a running kernel writes to a block that was allocated after its launch is lost",
        "new memory counts as unwritten whether or not the GPU was idle",
        Recipe(only=("mailbox", "evictions"), threads=1),
        (
            _in(
                "memory/blocks.c",
                "    if (!idle && !(marked && gs_context_mark_passed()))",
                "    if (false && !idle && !(marked && gs_context_mark_passed()))",
            ),
            _in(
                "memory/mover.c",
                "untouched = gs_context_idle(submissions) ? submissions : GS_WRITTEN;",
                "untouched = submissions;",
            ),
        ),
        calm=True,
    ),
    "2": Defect(
        "on one GPU, a thread that launches while it holds a host function's lock hangs",
        "the scheduler lets no process on one GPU take steps",
        Recipe(only=("locks", "kernels")),
        scheduler=(
            "from jupyter_gpushare.scheduler.core.collectives import Collectives\n"
            "Collectives._step_stuck = lambda self, group, known: []\n"
        ),
        environ={"GPUSHARE_SIM_DEVICES": "1"},
    ),
    "3": Defect(
        "an allocation invalidates a capture, because it asks for earlier frees",
        "the interposer asks for the events of frees in the thread's own capture mode",
        Recipe(only=("captures", "async"), threads=1),
        (
            _in(
                "memory/memory.c",
                "        return;\n    GS_LEAVES_CAPTURES_ALONE;\n    while (gs_free_queue_any",
                "        return;\n    while (gs_free_queue_any",
            ),
        ),
    ),
    "4": Defect(
        "cuMemRetainAllocationHandle of cuMemAlloc's memory succeeds",
        "the check that refuses it is left out",
        Recipe(only=("misuse",)),
        (
            _in(
                "hooks/vmm.c",
                "    if (result == CUDA_ERROR_NOT_FOUND && is_allocation((CUdeviceptr)address, 1))\n"
                "        return CUDA_ERROR_INVALID_VALUE;\n"
                "    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemRetainAll",
                "    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemRetainAll",
            ),
        ),
    ),
    "5": Defect(
        "after a kernel has failed, allocations succeed or wait",
        "the interposer does not notice that a context has failed",
        Recipe(only=("fault", "evictions")),
        (
            _in(
                "gate/failures.c",
                "    if (!gs_context_is_lost(result) || context->failure != CUDA_SUCCESS)\n"
                "        return;\n",
                "    if (!gs_context_is_lost(result) || context->failure == CUDA_SUCCESS)\n"
                "        return;\n",
            ),
            _in(
                "gate/failures.c",
                "        return CUDA_SUCCESS;\n    note_failure(current, result);\n    return result;",
                "        return CUDA_SUCCESS;\n    note_failure(current, result);\n"
                "    return CUDA_SUCCESS;",
            ),
        ),
        calm=True,
    ),
    "6": Defect(
        "with the scheduler stopped, messages are lost and calls wait that must not",
        "messages are sent as before the outbox: for 2 s, and then not at all",
        Recipe(only=("silence",)),
        (
            _in(
                "client/channel.c",
                "    bool waited = !gs_outbox_empty(&channel.outbox);\n"
                "    if (!gs_post(channel.socket, &channel.outbox, type, body, size))\n"
                "        break_connection_locked();\n"
                "    else if (!waited && !gs_outbox_empty(&channel.outbox))\n"
                "        gs_helper_call();\n",
                "    if (!gs_send(channel.socket, type, body, size))\n        gs_helper_call();\n",
            ),
        ),
        calm=True,
    ),
    "7": Defect(
        "the work of contexts that come from elsewhere is not waited for",
        "a context is not registered when it is first seen",
        Recipe(only=("behind", "kernels", "evictions"), settings=_SLOW_KERNELS, without=("rmctx",)),
        (_in("hooks/context.c", "    if (!gs_context_alive(handle) &&", "    if (false &&"),),
        calm=True,
    ),
    "8": Defect(
        "stream-ordered memory that was freed stays charged",
        "only an allocation gives it back",
        Recipe(only=("charges",)),
        (
            _in(
                "memory/memory.c",
                "void gs_memory_reap(void)\n{\n    reap(false);\n}",
                "void gs_memory_reap(void)\n{\n}",
            ),
        ),
    ),
    "9": Defect(
        "a primary context that several threads retain at once is charged once for each",
        "they do not wait for the first of them",
        Recipe(only=("herds",), settings=("! GPUSHARE_SIM_FAIL=cuDevicePrimaryCtxRetain/50ms",)),
        (
            _in(
                "gate/contexts.c",
                "primary_locked(device) == NULL;\n    if (*first)\n        begin_change_locked(device);\n",
                "primary_locked(device) == NULL;\n",
            ),
        ),
        calm=True,
    ),
    "10": Defect(
        "addresses that the driver hands out again at once are forgotten",
        "the driver frees addresses before the interposer forgets them (2 ms before)",
        Recipe(only=("mapped",), settings=("! GPUSHARE_SIM_REUSE=1",)),
        (
            _in("hooks/vmm.c", _SLEEPS, f"{_SLEEPS}\n#include <unistd.h>"),
            _in(
                "hooks/vmm.c",
                "    struct gs_reservation *reservation = gs_reservation_take(address, &lost);\n"
                "    CUresult result = lost ? CUDA_SUCCESS : GS_REAL(cuMemAddressFree)(address, size);\n"
                "    gs_reservation_taken(reservation, result == CUDA_SUCCESS);\n",
                "    CUresult result = GS_REAL(cuMemAddressFree)(address, size);\n"
                "    usleep(2000);\n"
                "    if (result == CUDA_SUCCESS)\n"
                "        gs_reservation_taken(gs_reservation_take(address, &lost), true);\n",
            ),
        ),
    ),
    "11": Defect(
        "a query about an address waits while another thread opens a stopped process's memory",
        "the table of IPC memory is locked while memory is opened",
        Recipe(only=("ipc",)),
        (
            _in(
                "hooks/ipc.c",
                "    result = open_token(opened);\n    bool used",
                "    gs_mutex_lock(&ipc.lock);\n    result = open_token(opened);\n"
                "    gs_mutex_unlock(&ipc.lock);\n    bool used",
            ),
        ),
        calm=True,
    ),
    "12": Defect(
        "memory can be freed twice in the order of a stream",
        "the interposer does not ask whether it was freed already",
        Recipe(only=("async", "misuse")),
        (
            _in(
                "memory/memory.c",
                "                      : allocation->freed ? CUDA_ERROR_INVALID_VALUE\n",
                "",
            ),
            _in(
                "memory/memory.c",
                "    if (allocation == NULL || allocation->freed)\n        result =",
                "    if (allocation == NULL)\n        result =",
            ),
        ),
    ),
    "13": Defect(
        "bytes are lost when a part of a program's memory is evicted",
        "the block that is more than is wanted is dropped instead of copied",
        Recipe(only=("charges", "copies")),
        (
            _in(
                "memory/mover.c",
                "    bool unwritten = taken && block->pieces[i].untouched == gs_gate_submissions();",
                "    bool unwritten = taken && (eviction->round == EXCESS ||\n"
                "                               block->pieces[i].untouched == gs_gate_submissions());",
            ),
        ),
    ),
    "14": Defect(
        "a thread waits for ever (a lost request)",
        "a lease is given back without asking for the next one for the threads that wait",
        Recipe(only=("kernels", "copies")),
        (
            _in(
                "client/lease.c",
                "    gs_lease_send_last_released_locked(id, cause);\n    if (lease.waiters != 0)\n"
                "        send_request();\n",
                "    gs_lease_send_last_released_locked(id, cause);\n    lease.requested = lease.waiters != 0;\n",
            ),
        ),
    ),
    "15": Defect(
        "an address inside a block can be freed",
        "an allocation is found by any of its addresses",
        Recipe(only=("misuse",)),
        (
            _in(
                "memory/memory.c",
                "    return allocation != NULL && allocation->node.key == pointer ? allocation : NULL;",
                "    return allocation != NULL && pointer - allocation->node.key < allocation->size"
                " ? allocation : NULL;",
            ),
        ),
    ),
    "16": Defect(
        "memory that is freed while it is evicted stays charged",
        "only resident memory is taken off the account",
        Recipe(only=("charges", "evictions")),
        (
            _in(
                "memory/blocks.c",
                "        gs_device_unbook(device, block->size, 0, 0);",
                "        gs_device_unbook(device, resident != 0 ? block->size : 0, 0, 0);",
            ),
        ),
        calm=True,
    ),
    "17": Defect(
        "memory is given to others while a kernel of another thread still uses it",
        "what was submitted while a free waited counts as done, too",
        Recipe(only=("frees",), without=("set", "read", "sync"), fewest_threads=2, lockstep=0.0),
        (
            _in(
                "memory/memory.c",
                "    memory.idle_passes = passes;",
                "    memory.idle_passes = passes - passes + gs_gate_passes();",
            ),
        ),
        calm=True,
    ),
}


@dataclass(frozen=True)
class Hunt:
    """How a search ended: what was compared, how long it took, and what was found."""

    programs: int
    calls: int
    seconds: float
    finding: Finding | None


def build(workshop: Workshop | None, defect: Defect) -> Path:
    """Return the libraries with that defect; without a workshop, the installed libraries."""
    return workshop.build(defect.patches) if workshop is not None and defect.patches else LIBRARIES


@contextlib.contextmanager
def ground(
    defect: Defect, player: Path, libraries: Path = LIBRARIES, scheduler: str = ""
) -> Iterator[Places]:
    """Set up a place as that defect needs it; it is as good as what is given."""
    with socket_folder() as folder:
        environ = dict(defect.environ)
        if scheduler:
            # Python executes this file before all others.
            (Path(folder) / "sitecustomize.py").write_text(scheduler)
            environ["PYTHONPATH"] = folder
        with place(player, JOBS, libraries, calm=defect.calm, environ=environ) as here:
            yield here


def hunt(
    here: Places, defect: Defect, seed: str, seconds: float = LIMIT, shrinking: float = 0.0
) -> Hunt:
    """Run programs until one shows a difference."""
    totals = Totals()
    begun = time.monotonic()
    findings = fuzz(
        here,
        totals,
        seed=seed,
        recipe=defect.recipe,
        seconds=seconds,
        shrinking=shrinking,
        patience=PATIENCE,
    )
    with contextlib.closing(findings):
        finding = next(findings, None)
        taken, programs, calls = time.monotonic() - begun, totals.programs, totals.calls
    return Hunt(programs, calls, taken, finding)


def _row(number: str, hunts: Sequence[Hunt]) -> str:
    defect = DEFECTS[number]
    found = sum(one.finding is not None for one in hunts)
    medians = (
        statistics.median(getattr(one, name) for one in hunts)
        for name in ("programs", "calls", "seconds")
    )
    programs, calls, seconds = medians
    return (
        f"| {number} | {defect.what} | {defect.change} | {programs:,.0f} | {calls:,.0f} | "
        f"{seconds:.1f} s | {found} of {len(hunts)} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential.seeds", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default="", help="numbers of defects, with commas between them")
    parser.add_argument("--runs", type=int, default=3, help="how often each is looked for")
    parser.add_argument("--seconds", type=float, default=LIMIT, help=f"for how long ({LIMIT:.0f})")
    parser.add_argument("--seed", help="what the programs are made from (default: random)")
    parser.add_argument("--shrink", type=float, default=0.0, help="seconds to shorten programs (0)")
    parser.add_argument("--show", action="store_true", help="print what was found")
    parser.add_argument(
        "--without-defects", action="store_true", help="look for them where they are not"
    )
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else str(random.SystemRandom().randrange(10**9))
    as_expected = True
    print(f"seed {seed}\n", flush=True)
    print("| | defect | what was changed | programs | calls | time | found |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    with socket_folder() as name:
        folder = Path(name)
        player = build_player(folder)
        workshop = None
        if not options.without_defects:
            (folder / "workshop").mkdir()
            workshop = Workshop(folder / "workshop", Path(__file__).resolve().parents[2])
        for number in options.only.split(",") if options.only else DEFECTS:
            defect = DEFECTS[number]
            libraries = build(workshop, defect)
            hunts = []
            for run in range(options.runs):
                scheduler = defect.scheduler if workshop is not None else ""
                with ground(defect, player, libraries, scheduler) as here:
                    hunts.append(
                        hunt(here, defect, f"{seed}/{run}", options.seconds, options.shrink)
                    )
                finding = hunts[-1].finding
                as_expected = as_expected and (finding is None) == options.without_defects
                if finding is not None and options.show:
                    print(report(finding), flush=True)
            print(_row(number, hunts), flush=True)
    return 0 if as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
