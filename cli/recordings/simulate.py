# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare simulate``: compare scheduling policies in virtual time."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...scheduler.node.arguments import complain, count, nearest, number, seconds, size

if TYPE_CHECKING:
    from ...scheduler.simulation.outcome import Outcome
    from ...scheduler.simulation.trace import Trace

DEFAULT_POLICIES = "burst,fcfs,exclusive,shared"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "simulate",
        description="Run the scheduler in virtual time on a workload (a trace), under several policies. Print for each "
        "policy how long cells waited, how long jobs took, and how much data was moved. Needs no GPU.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="simulate the trace in a file")
    source.add_argument(
        "--generate",
        metavar="KIND",
        choices=["students", "agents", "research", "production"],
        help="simulate a generated trace: students, agents (students and agents), research or production",
    )
    source.add_argument(
        "--record-from",
        type=Path,
        metavar="RECORDING",
        help="simulate a trace made from a recording of `gpushare record`",
    )
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="NAMES",
        help="comma-separated policies; also exclusive (each notebook has a whole GPU, one after the other) and shared "
        f"(all run at once, without a scheduler) (default: {DEFAULT_POLICIES})",
    )
    parser.add_argument(
        "--with",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter of the generator, such as load=1.2; can be repeated",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the generator (default: 1)")
    parser.add_argument(
        "--gpus",
        type=count(1000),
        metavar="N",
        help="number of GPUs, 1 to 1000 (default: the trace's number)",
    )
    _add_tiers(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="plot the result to a .png or .svg file"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the trace to a file")
    parser.add_argument(
        "--starved-after",
        type=seconds,
        default=300.0,
        metavar="S",
        help="count a notebook as starved if it waits this many seconds without any GPU time (default: 300)",
    )
    parser.add_argument(
        "--meter",
        type=seconds,
        default=0.1,
        metavar="S",
        help="seconds between two readings of a notebook's GPU time; larger is faster and less exact (default: 0.1, as "
        "in production)",
    )
    parser.add_argument(
        "--processes",
        type=count(1024),
        metavar="N",
        help="number of simulations to run in parallel (default: one for each CPU core)",
    )


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    """Add what notebooks' memory contains, and where evicted data goes."""
    parser.add_argument(
        "--host-memory",
        type=size,
        metavar="SIZE",
        help="host memory of each node for evicted data, such as 128G (default: the trace's size)",
    )
    parser.add_argument(
        "--disk",
        type=size,
        default=0,
        metavar="SIZE",
        help="space on a disk of each node for evicted data that exceeds host memory, such as 1T (default: 0)",
    )
    parser.add_argument(
        "--disk-speed",
        type=_speed,
        default=3e9,
        metavar="SIZE",
        help="bytes that the disk reads or writes in a second, such as 2G (default: 3 GB)",
    )
    parser.add_argument(
        "--changed",
        type=number("fraction", 0, 1),
        default=1.0,
        metavar="FRACTION",
        help="fraction of a notebook's memory that changes between two of its evictions, 0 to 1; the rest is evicted "
        "without a copy while host memory has room for the last one (default: 1)",
    )
    parser.add_argument(
        "--zeros",
        type=number("fraction", 0, 1),
        default=0.0,
        metavar="FRACTION",
        help="fraction of a notebook's memory that is all zeros, 0 to 1; zeros are neither copied nor stored "
        "(default: 0)",
    )
    parser.add_argument(
        "--equal",
        type=number("fraction", 0, 1),
        default=0.0,
        metavar="FRACTION",
        help="fraction of the other memory that is equal in all notebooks of one user, such as the weights of one "
        "model, 0 to 1; equal data is stored once (default: 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate; exit status 2 for a trace or policy that is not valid."""
    from ...scheduler.observability.recording import RecordingError
    from ...scheduler.policies import available
    from ...scheduler.simulation import plot, report
    from ...scheduler.simulation.outcome import Stalled
    from ...scheduler.simulation.run import BASELINES
    from ...scheduler.simulation.trace import TraceError, write

    policies = list(dict.fromkeys(name.strip() for name in args.policy.split(",") if name.strip()))
    known = [*available(), *BASELINES]
    unknown = [name for name in policies if name not in known]
    if unknown or not policies:
        asked = unknown[0] if unknown else ""
        return complain(
            f"unknown policy {asked!r}{nearest(asked, known)}; choose from {', '.join(known)}"
        )
    try:
        if args.plot is not None:
            plot.check(args.plot)
        trace = _trace(args)
        if args.host_memory is not None:
            trace = replace(trace, header=replace(trace.header, host_memory=args.host_memory))
        if args.write is not None:
            with args.write.open("w", encoding="utf-8") as file:
                write(trace, file)
    except (TraceError, RecordingError, plot.PlotError) as error:
        return complain(str(error))
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}")
    gpus = args.gpus or trace.header.gpus
    try:
        outcomes = _simulate(args, trace, policies, gpus)
    except Stalled as error:
        print(f"gpushare: the simulation stalled: {error}", file=sys.stderr)
        return 1
    figures = {policy: report.figures(outcome) for policy, outcome in outcomes.items()}
    title = f"{trace.header.name or 'trace'}: {len(trace.kernels)} kernels on {gpus} GPU"
    title += "s" if gpus > 1 else ""
    if args.json:
        shown = {"trace": trace.header.name, "kernels": len(trace.kernels), "gpus": gpus}
        print(json.dumps({**shown, "policies": figures}))
    else:
        from ..terminal import columns, console, table

        rows, right = report.rows(figures), set(range(1, len(policies) + 1))
        print(title)
        console().print(table(("", *policies), rows, right, columns()))
    if args.plot is not None:
        try:
            plot.draw(args.plot, title, outcomes, figures)
        except plot.PlotError as error:
            return complain(str(error))
    return 0


def _simulate(
    args: argparse.Namespace, trace: Trace, policies: list[str], gpus: int
) -> dict[str, Outcome]:
    from ...scheduler.simulation.run import simulate
    from ...scheduler.simulation.tiers import Tiers
    from ..terminal import progress

    tiers = Tiers(args.changed, args.zeros, args.equal, args.disk, args.disk_speed)

    with progress() as show:
        return dict(
            simulate(
                trace,
                policies,
                gpus,
                meter=args.meter,
                starving=args.starved_after,
                tiers=tiers,
                processes=args.processes or len(os.sched_getaffinity(0)),
                on_step=lambda done, total: show("simulating", done, total),
            )
        )


def _trace(args: argparse.Namespace) -> Trace:
    from ...scheduler.simulation.generate import generate
    from ...scheduler.simulation.trace import TraceError, read

    given = {}
    for text in args.parameters:
        name, _, value = text.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            raise TraceError(
                f"invalid parameter --with {text}; use NAME=NUMBER, for example load=1.2"
            ) from None
    if args.record_from is not None:
        from ...scheduler.simulation.recorded import convert

        return convert(args.record_from)
    if args.trace is None:
        return generate(args.generate, _seed(args, 1), given, args.gpus)
    trace = read(args.trace)
    header = trace.header
    if header.generate:
        named = generate(
            header.generate, _seed(args, header.seed), {**header.parameters, **given}, args.gpus
        )
        return replace(named, header=replace(named.header, name=header.name or header.generate))
    if given or args.seed is not None:
        raise TraceError(
            f"{args.trace} lists its kernels; --with and --seed apply only to generated traces"
        )
    return trace


def _seed(args: argparse.Namespace, default: int) -> int:
    return default if args.seed is None else int(args.seed)


def _speed(text: str) -> float:
    value = size(text)
    if not value:
        raise argparse.ArgumentTypeError(f"invalid speed {text!r}; use bytes a second, such as 2G")
    return float(value)
