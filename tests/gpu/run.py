# SPDX-License-Identifier: BSD-3-Clause
"""``python -m tests.gpu.run``: every program on the GPUs here, evicted and hibernated, against itself without us.

Exit status 0 if all that can run here gives the same bits, 1 if not, 2 if nothing can be run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jupyter_gpushare.benchmarks.published.conformance import (
    MODES,
    STEPS,
    TIME_LIMIT,
    Suite,
    Unfit,
    Verdict,
)

PROGRAMS = Path(__file__).resolve().with_name("programs")
GIB = 1 << 30


def main(argv: list[str] | None = None) -> int:
    """Run and print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.run", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a program; repeatable")
    parser.add_argument(
        "--way", action="append", choices=MODES[1:], help="in this way only; repeatable (all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a program")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each program ({STEPS})")
    parser.add_argument(
        "--jobs", type=int, default=0, help="programs at once (half the processors, at most 6)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="S",
        help=f"no program is started after so many seconds ({TIME_LIMIT:.0f})",
    )
    args = parser.parse_args(argv)
    programs = {path.stem: path for path in sorted(PROGRAMS.glob("*.py"))}
    unknown = [name for name in args.only or () if name not in programs]
    if unknown:
        parser.error(f"no program is called {unknown[0]}; there are {', '.join(programs)}")
    if args.steps < 1 or args.jobs < 0:
        parser.error("--steps is at least 1, --jobs at least 0")
    try:
        suite = Suite(
            os.environ,
            steps=args.steps,
            jobs=args.jobs,
            time_limit=args.time_limit,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
            ways=args.way or MODES,
        )
        verdicts = suite.run([programs[name] for name in args.only or programs])
    except Unfit as error:
        print(f"Nothing was run: {error}", file=sys.stderr)
        return 2
    for line in (v.as_json() for v in verdicts) if args.json else table(verdicts):
        print(line)
    return 1 if any(verdict.problem for verdict in verdicts) else 0


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Return the lines of a table, and the output of failed programs."""
    yield (
        f"{'program':20} {'steps':>5} {'evictions':>15} {'GiB moved':>15} {'hibernated':>11} {'elsewhere':>10}  equal"
        f"   (between steps / by the antagonist)"
    )
    for verdict in verdicts:
        if verdict.absent:
            yield f"{verdict.program:20} not here: {verdict.runs['plain'].text}"
            continue
        ways = [mode for mode in ("evict", "antagonist") if mode in verdict.runs]
        pairs = [verdict.runs[mode].moves for mode in ways]
        evictions = " / ".join(str(moves.evictions) for moves in pairs)
        moved = " / ".join(f"{(m.evicted + m.restored) / GIB:.1f}" for m in pairs)
        asleep, away = verdict.runs.get("hibernate"), verdict.runs.get("elsewhere")
        times = "" if asleep is None else asleep.left_alone or str(asleep.moves.hibernations)
        others = "" if away is None else away.left_alone or str(away.moves.elsewhere)
        end = verdict.problem or "yes"
        yield f"{verdict.program:20} {verdict.steps:5} {evictions:>15} {moved:>15} {times:>11} {others:>10}  {end}"
    for verdict in verdicts:
        for mode, run in verdict.runs.items():
            if run.end in ("failed", "refused"):
                yield f"\n{verdict.program}, {mode}, {run.end}:"
                yield from (f"    {line}" for line in run.text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
