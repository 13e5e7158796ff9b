# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare bench``: measures what we publish, on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..benchmarks.figures import Figure

#: Name → module in ``benchmarks`` and function.
BENCHES = {
    "launch": ("launch", "run"),
    "slab": ("slab", "run"),
    "cell-end": ("waits", "cell_end"),
    "quantum-end": ("waits", "quantum_end"),
    "busy-server": ("notebooks", "busy_server"),
    "fits": ("waits", "fits"),
    "holder-killed": ("waits", "holder_killed"),
    "restart": ("waits", "scheduler_restart"),
    "interrupt": ("notebooks", "interrupt"),
    "turned-to-cpu": ("waits", "turned_to_cpu"),
    "kernel-start": ("notebooks", "kernel_start"),
    "swap": ("swap", "run"),
    "switch": ("swap", "switch"),
    "conformance": ("conformance", "run"),
    "training": ("training", "run"),
    "oversubscribe": ("oversubscribe", "run"),
    "estimates": ("estimates", "run"),
    "lab": ("lab", "run"),
    "scheduler": ("scheduler_events", "run"),
}
#: For the simulated driver: run where they are named.
NAMED_ONLY = frozenset({"lab", "oversubscribe"})


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
        help=f"which: {', '.join(BENCHES)} (default: all but "
        f"{' and '.join(sorted(NAMED_ONLY))}, which are for the simulated driver)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks; exit status 1 if one could not be measured."""
    from .main import complain

    unknown = [name for name in args.bench if name not in BENCHES]
    if unknown:
        return complain(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHES)}")
    failed = False
    for name in args.bench or [name for name in BENCHES if name not in NAMED_ONLY]:
        try:
            for figure in _figures(name):
                print(figure.as_json() if args.json else figure.as_text(), flush=True)
        except Exception as error:
            print(f"gpushare: {name} could not be measured: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def _figures(name: str) -> Iterator[Figure]:
    from importlib import import_module

    module, function = BENCHES[name]
    measure: Callable[[], Iterator[Figure]] = getattr(
        import_module(f"..benchmarks.{module}", __package__), function
    )
    return measure()
