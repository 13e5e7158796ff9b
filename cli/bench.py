# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare bench``: run the published benchmarks on this machine."""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..benchmarks.harness.figures import Figure

#: By name: the module in ``benchmarks/published``, and the function.
BENCHES = {
    "launch": ("launch", "run"),
    "slab": ("slab", "run"),
    "ordered": ("slab", "ordered"),
    "cell-end": ("waits", "cell_end"),
    "quantum-end": ("waits", "quantum_end"),
    "busy-server": ("notebooks", "busy_server"),
    "fits": ("waits", "fits"),
    "holder-killed": ("waits", "holder_killed"),
    "restart": ("waits", "scheduler_restart"),
    "takeover": ("takeover", "run"),
    "interrupt": ("notebooks", "interrupt"),
    "turned-to-cpu": ("waits", "turned_to_cpu"),
    "kernel-start": ("notebooks", "kernel_start"),
    "command-start": ("commands", "run"),
    "context": ("contexts", "run"),
    "swap": ("swap", "run"),
    "switch": ("swap", "switch"),
    "conformance": ("conformance", "run"),
    "training": ("training", "run"),
    "oversubscribe": ("oversubscribe", "run"),
    "estimates": ("estimates", "run"),
    "lab": ("lab", "run"),
    "interference": ("interference", "run"),
    "makespan": ("makespan", "run"),
    "shares": ("shares", "run"),
    "scheduler": ("scheduler_events", "run"),
    "class": ("class_load", "run"),
    "hibernate": ("hibernate", "run"),
    "idle-power": ("idle_power", "run"),
    "comeback": ("comeback", "run"),
    "two-gpus": ("two_gpus", "run"),
    "simulation": ("simulation", "run"),
    "agents": ("agents", "run"),
    "foresight": ("foresight", "run"),
    "disk": ("disk", "run"),
}
#: Run only if they are named, because they take long or are for the simulated driver.
NAMED_ONLY = frozenset(
    {
        "agents",
        "class",
        "comeback",
        "disk",
        "foresight",
        "hibernate",
        "idle-power",
        "interference",
        "lab",
        "makespan",
        "oversubscribe",
        "shares",
        "simulation",
        "two-gpus",
    }
)
#: Options that some benchmarks take, by the names of their functions' parameters.
SETTINGS = (
    "policy", "part", "pairs", "batch", "pause", "seconds", "gib", "kernels", "cycles", "seed", "time_limit",
)  # fmt: skip


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        description="Measure overhead, waits and hand-offs on this machine's GPU, or on the simulated driver if there "
        "is none. The benchmarks start their own scheduler.",
    )
    parser.add_argument(
        "bench",
        nargs="*",
        metavar="BENCH",
        help=f"benchmarks to run: {', '.join(BENCHES)} (default: all except {', '.join(sorted(NAMED_ONLY))})",
    ).completer = lambda **_: list(BENCHES)
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="interference, makespan: scheduling policy; can be repeated (default: each policy)",
    )
    parser.add_argument(
        "--part",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="makespan: run only some of half, most, fitting, cells; hibernate: run only some of memory, out, wake, "
        "crowd, cycles, elsewhere, pages, mapping (default: all but the last three); can be repeated",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help="interference, makespan: number of alternating measurements",
    )
    parser.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="interference: number of texts in a training step (default: 8)",
    )
    parser.add_argument(
        "--pause",
        type=float,
        metavar="S",
        help="interference: measure only the first burst after a pause of this many seconds",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="duration in seconds; makespan: of half a job's time slice; shares: of each condition; two-gpus: of the "
        "computation; hibernate: of the crowd; idle-power: in each state",
    )
    parser.add_argument(
        "--gib",
        "--size",
        type=float,
        metavar="G",
        help="memory in GiB; makespan, two-gpus, comeback, swap, switch, disk: of each job or notebook; hibernate: to "
        "evict and restore, or to page-lock",
    )
    parser.add_argument(
        "--kernels", type=int, metavar="N", help="hibernate: number of kernels in the crowd"
    )
    parser.add_argument("--cycles", type=int, metavar="N", help="hibernate: number of cycles")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="hibernate: seed of the random cycles (default: 1)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="hibernate, idle-power: stop after this many seconds (default: 1200, 600); --publish: start no "
        "benchmark that may take longer than the time that is left",
    )
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="DIR",
        help="run the benchmarks of the documentation (or BENCH of them) with their options, each in a process of its "
        "own, and write the figures to this folder, as JSON and as tables in Markdown. Run it again to continue an "
        "interrupted run",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line instead of text"
    )


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks; exit status 1 if one fails."""
    from ..scheduler.node.arguments import complain, nearest
    from .terminal import progress

    if args.json and args.publish is not None:
        return complain("--publish writes the figures to files; leave out --json")
    unknown = [name for name in args.bench if name not in BENCHES]
    if unknown:
        return complain(
            f"unknown benchmark {unknown[0]!r}{nearest(unknown[0], BENCHES)}; choose from {', '.join(BENCHES)}"
        )
    settings = {name: value for name in SETTINGS if (value := getattr(args, name)) is not None}
    for name, value in settings.items():
        if not isinstance(value, list) and value <= 0:
            return complain(f"--{name.replace('_', '-')} must be greater than 0")
    if args.publish is not None:
        given = [name for name in settings if name != "time_limit"]
        if given:
            option = given[0].replace("_", "-")
            return complain(
                f"--publish runs each benchmark with its published options; leave out --{option}"
            )
        return _publish(args.publish, args.bench, args.time_limit)
    failed = False
    names = args.bench or [name for name in BENCHES if name not in NAMED_ONLY]
    with progress() as show:
        for number, name in enumerate(names):
            show(name, number, len(names))
            try:
                for figure in _figures(name, settings):
                    print(figure.as_json() if args.json else figure.as_text(), flush=True)
            except Exception as error:
                print(f"gpushare: the benchmark {name} failed: {error}", file=sys.stderr)
                failed = True
    return 1 if failed else 0


def _publish(folder: Path, names: list[str], time_limit: float | None) -> int:
    """Run the parts that are missing; exit status 1 if one of them failed, or was left out for lack of time."""
    from ..benchmarks.publication import plan
    from ..benchmarks.publication.results import Publication, PublicationError, write
    from ..benchmarks.publication.tables import tables
    from ..scheduler.node.arguments import complain
    from .terminal import progress

    begun = time.monotonic()
    try:
        publication = Publication(folder / "results.json")
    except PublicationError as error:
        return complain(str(error))
    gpus = len(publication.host.gpus)
    parts = [
        part
        for part in (plan.ON_GPU if gpus else plan.WITHOUT_GPU)
        if (not names or part.bench in names) and (gpus == 0 or part.gpus <= gpus)
    ]
    if not parts:
        return complain(f"--publish cannot run {', '.join(names)} on this machine")
    missing = publication.missing(parts)
    left_out = failed = 0
    with progress() as show:
        for number, part in enumerate(missing):
            show(part.arguments, number, len(missing))
            if time_limit is not None and time.monotonic() - begun + part.seconds > time_limit:
                left_out += 1
                continue
            result = publication.run(part)
            write(folder / "results.md", "\n".join(tables(publication.results)).encode() + b"\n")
            if result.end != "done":
                failed += 1
                print(f"gpushare: {part.command}: {result.end}\n{result.error}", file=sys.stderr)
    done = len(missing) - left_out - failed
    print(
        f"{folder / 'results.md'}: {done} new, {len(parts) - len(missing)} done before, {failed} failed, "
        f"{left_out} left out for lack of time"
    )
    return 1 if failed or left_out else 0


def _figures(name: str, settings: dict[str, Any]) -> Iterator[Figure]:
    from importlib import import_module

    module, function = BENCHES[name]
    measure: Callable[..., Iterator[Figure]] = getattr(
        import_module(f"..benchmarks.published.{module}", __package__), function
    )
    taken = inspect.signature(measure).parameters
    return measure(**{key: value for key, value in settings.items() if key in taken})
