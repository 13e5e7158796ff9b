# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of a simulation: how long cells waited, how long jobs took, how full the GPUs were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .outcome import Outcome

FORMATS = (".png", ".svg")


class PlotError(Exception):
    """The picture cannot be drawn. The text is one sentence for the user."""


def check(path: Path) -> None:
    """Check whether a picture can be drawn, before anything is simulated.

    Raises
    ------
    PlotError
        matplotlib is not installed, or does not support the file's suffix.
    """
    if path.suffix.lower() not in FORMATS:
        raise PlotError(f"{path} names no picture: it has to end in {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} cannot be written: there is no such folder")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotError(
            "to draw, matplotlib is needed, and it is not installed; install it with "
            "pip install 'jupyter-gpushare[plots]', or leave --plot out"
        ) from None


def draw(
    path: Path, title: str, outcomes: Mapping[str, Outcome], figures: Mapping[str, Any]
) -> None:
    """Draw the results of each policy.

    Raises
    ------
    PlotError
        The file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Without metadata that changes, so that equal figures give equal files.
    matplotlib.rcParams["svg.hashsalt"] = "gpushare"
    picture = Figure(figsize=(13, 4.2), layout="constrained")
    waits, jobs, use = picture.subplots(1, 3)
    picture.suptitle(title)
    for policy, outcome in outcomes.items():
        found = sorted(w for cells in outcome.cells.values() for w in cells.waits)
        if found:
            parts = [(index + 1) / len(found) for index in range(len(found))]
            waits.step([max(w, 1e-3) for w in found], parts, where="post", label=policy)
        ended = sorted(c for done in outcome.jobs.values() for c in done.completions)
        if ended:
            parts = [(index + 1) / len(ended) for index in range(len(ended))]
            jobs.step([seconds / 60 for seconds in ended], parts, where="post", label=policy)
    for axes, what, unit in ((waits, "Waits of cells", "s"), (jobs, "Completion of jobs", "min")):
        axes.set(title=what, xlabel=unit, ylabel="fraction", ylim=(0, 1))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.set_xscale("log")
            axes.legend()
    names = list(figures)
    use.bar(names, [100 * figures[name]["utilisation"] for name in names])
    use.set(title="Utilisation of the GPUs", ylabel="%", ylim=(0, 100))
    use.tick_params(axis="x", rotation=30)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    try:
        picture.savefig(path, metadata=metadata)
    except OSError as error:
        raise PlotError(f"{path} cannot be written: {error.strerror}") from None
