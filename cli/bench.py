# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare bench``: measures what we publish, on this machine."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..benchmarks.harness.figures import Figure

#: Name → module in ``benchmarks/published`` and function.
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
    "interrupt": ("notebooks", "interrupt"),
    "turned-to-cpu": ("waits", "turned_to_cpu"),
    "kernel-start": ("notebooks", "kernel_start"),
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
    "two-gpus": ("two_gpus", "run"),
    "simulation": ("simulation", "run"),
}
#: Run where they are named: they take long, or are for the simulated driver.
NAMED_ONLY = frozenset(
    {
        "class",
        "hibernate",
        "interference",
        "lab",
        "makespan",
        "oversubscribe",
        "shares",
        "simulation",
        "two-gpus",
    }
)
#: What can be said of those that compare policies; by the names of their functions' parameters.
SETTINGS = ("policy", "part", "pairs", "seconds", "gib", "kernels", "cycles", "time_limit")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure launches, waits and hand-offs on this machine",
        description="Measures on the GPU that is here, else on the simulated driver, with a scheduler of its own.",
    )
    parser.add_argument(
        "bench",
        nargs="*",
        metavar="BENCH",
        help=f"which: {', '.join(BENCHES)} (default: all but {', '.join(sorted(NAMED_ONLY))})",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="interference, makespan: under this policy; repeatable (default: each that there is)",
    )
    parser.add_argument(
        "--part",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="makespan: only these of half, most, fitting, cells; hibernate: of memory, out, wake, crowd, cycles, "
        "elsewhere, pages, mapping (default: all but the last three); repeatable",
    )
    parser.add_argument(
        "--pairs", type=int, metavar="N", help="interference, makespan: how often, alternating"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="makespan: half a turn of a job; shares: each condition; two-gpus: what is computed; "
        "hibernate: the crowd; seconds",
    )
    parser.add_argument(
        "--gib",
        "--size",
        type=float,
        metavar="G",
        help="makespan, two-gpus: what each job or notebook holds; hibernate: what is moved out and back, or "
        "page-locked; GiB",
    )
    parser.add_argument("--kernels", type=int, metavar="N", help="hibernate: how many in the crowd")
    parser.add_argument("--cycles", type=int, metavar="N", help="hibernate: how many cycles")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="hibernate: seconds after which it ends (default: 1200)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks; exit status 1 if one could not be measured."""
    from ..scheduler.node.arguments import complain

    unknown = [name for name in args.bench if name not in BENCHES]
    if unknown:
        return complain(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHES)}")
    settings = {name: value for name in SETTINGS if (value := getattr(args, name)) is not None}
    for name, value in settings.items():
        if not isinstance(value, list) and value <= 0:
            return complain(f"--{name.replace('_', '-')} is above 0")
    failed = False
    for name in args.bench or [name for name in BENCHES if name not in NAMED_ONLY]:
        try:
            for figure in _figures(name, settings):
                print(figure.as_json() if args.json else figure.as_text(), flush=True)
        except Exception as error:
            print(f"gpushare: {name} could not be measured: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def _figures(name: str, settings: dict[str, Any]) -> Iterator[Figure]:
    from importlib import import_module

    module, function = BENCHES[name]
    measure: Callable[..., Iterator[Figure]] = getattr(
        import_module(f"..benchmarks.published.{module}", __package__), function
    )
    taken = inspect.signature(measure).parameters
    return measure(**{key: value for key, value in settings.items() if key in taken})
