# SPDX-License-Identifier: BSD-3-Clause
"""Compare random programs under the interposer with the bare driver.

    python -m tests.differential --seconds 600
    python -m tests.differential --calls 10000000 --jobs 2
    python -m tests.differential --program FILE

Exit status: 0 if there was no undocumented difference, 1 if there was one, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .fuzzing import Totals, fuzz, report
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
    parser.add_argument("--lines", type=int, default=300, help="longest program (default: 300)")
    parser.add_argument(
        "--only", default="", help="groups of operations, with commas between them (default: all)"
    )
    parser.add_argument("--without", default="", help="operations to leave out, likewise")
    parser.add_argument(
        "--shrink", type=float, default=120.0, help="seconds to shorten a program (default: 120)"
    )
    parser.add_argument("--program", type=Path, help="run this file's program again and again")
    parser.add_argument(
        "--keep-going", action="store_true", help="print a difference, and look for the next one"
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.lines < 10:
        parser.error("--jobs must be 1 or more, --lines 10 or more")
    seed = options.seed if options.seed is not None else str(random.SystemRandom().randrange(10**9))
    seconds = options.seconds or (60.0 if options.calls is None else float("inf"))
    program = None
    if options.program is not None:
        program = [
            line for line in options.program.read_text().splitlines() if line[:1] in tuple("0123*!")
        ]
    recipe = Recipe(
        lines=options.lines,
        only=tuple(filter(None, options.only.split(","))),
        without=tuple(filter(None, options.without.split(","))),
    )
    print(f"seed {seed}", flush=True)
    totals = Totals()
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        player = build_player(Path(folder))
        with place(player, options.jobs, seed=seed) as here:
            for finding in fuzz(
                here,
                totals,
                seed=seed,
                recipe=recipe,
                seconds=seconds,
                calls=options.calls,
                program=program,
                shrinking=options.shrink,
            ):
                print(report(finding), flush=True)
                if not options.keep_going:
                    break
    print(totals.line(), flush=True)
    return 1 if totals.differences else 0


if __name__ == "__main__":
    sys.exit(main())
