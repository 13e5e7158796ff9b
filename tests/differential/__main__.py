# SPDX-License-Identifier: BSD-3-Clause
"""Compare random programs under the interposer with the bare driver.

    python -m tests.differential --seconds 600
    python -m tests.differential --calls 10000000 --jobs 2
    python -m tests.differential --program FILE
    python -m tests.differential --gpu --calls 100000 --seconds 300 --jobs 8

Exit status: 0 if there was no undocumented difference, 1 if there was one, 2 for bad arguments or where nothing can be
run.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jupyter_gpushare.benchmarks.published.conformance import Unfit
from tests.support.folders import socket_folder

from .fuzzing import Totals, fuzz, report
from .gpu import EVERY, survey
from .programs import Recipe
from .running import build_player, place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, help="how long (default: 60, or as --calls needs)")
    parser.add_argument("--calls", type=int, help="how many calls to compare at least")
    parser.add_argument("--seed", help="what the programs are made from (default: random)")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time (default: 1)")
    parser.add_argument("--lines", type=int, help="longest program (default: 300; with --gpu, 600)")
    parser.add_argument(
        "--only", default="", help="groups of operations, with commas between them (default: all)"
    )
    parser.add_argument("--without", default="", help="operations to leave out, likewise")
    parser.add_argument(
        "--shrink",
        type=float,
        help="seconds to shorten a program (default: 120; with --gpu, not at all)",
    )
    parser.add_argument("--program", type=Path, help="run this file's program again and again")
    parser.add_argument(
        "--case", type=int, default=0, help="which of the programs that --log wrote (default: 0)"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="print a difference, and look for the next one"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="on this machine's GPU; all kinds of differences are counted, and none ends the run",
    )
    parser.add_argument(
        "--player", type=Path, help="one that is compiled, with its kernels beside it"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=EVERY,
        help=f"with --gpu: seconds until a program loses its memory again (default: {EVERY})",
    )
    parser.add_argument(
        "--log", type=Path, help="with --gpu: write the programs that differ there, as JSON"
    )
    options = parser.parse_args(arguments)
    lines = options.lines or (600 if options.gpu else 300)
    if options.jobs < 1 or lines < 10:
        parser.error("--jobs must be 1 or more, --lines 10 or more")
    seed = options.seed if options.seed is not None else str(random.SystemRandom().randrange(10**9))
    endless = options.calls is not None and not options.gpu
    seconds = options.seconds or (float("inf") if endless else 60.0)
    program = None
    if options.program is not None:
        text = options.program.read_text().splitlines()
        if text and text[0].startswith("{"):
            text = json.loads(text[options.case])["program"]
        program = [line for line in text if line[:1] in tuple("0123*!")]
    recipe = Recipe(
        lines=lines,
        only=tuple(filter(None, options.only.split(","))),
        without=tuple(filter(None, options.without.split(","))),
    )
    print(f"seed {seed}", flush=True)
    shrinking = options.shrink
    if shrinking is None:
        shrinking = 0.0 if options.gpu else 120.0
    totals = Totals()
    with socket_folder() as folder:
        player = options.player.absolute() if options.player else build_player(Path(folder))
        if options.gpu:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            try:
                return survey(
                    player,
                    jobs=options.jobs,
                    seed=seed,
                    recipe=recipe,
                    seconds=seconds,
                    calls=options.calls,
                    program=program,
                    shrinking=shrinking,
                    log=options.log,
                    every=options.every,
                )
            except Unfit as error:
                print(f"Nothing was run: {error}", file=sys.stderr)
                return 2
        with place(player, options.jobs, seed=seed) as here:
            for finding in fuzz(
                here,
                totals,
                seed=seed,
                recipe=recipe,
                seconds=seconds,
                calls=options.calls,
                program=program,
                shrinking=shrinking,
            ):
                print(report(finding), flush=True)
                if not options.keep_going:
                    break
    print(totals.line(), flush=True)
    return 1 if totals.differences else 0


if __name__ == "__main__":
    sys.exit(main())
