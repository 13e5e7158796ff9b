# SPDX-License-Identifier: BSD-3-Clause
"""How ``make docs`` builds the documentation, and what of it is taken from the code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from traitlets import HasTraits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from jupyter_gpushare import __version__  # noqa: E402
from jupyter_gpushare.cli.main import build_parser  # noqa: E402
from jupyter_gpushare.hub.config import GpuShareHub  # noqa: E402
from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner  # noqa: E402
from jupyter_gpushare.kernel_provisioner.in_kernel.verbs import VERBS, usage  # noqa: E402
from jupyter_gpushare.scheduler.node.config import NodeScheduler  # noqa: E402
from jupyter_gpushare.server_extension.config import GpuShare  # noqa: E402

project = "jupyter-gpushare"
author = "The jupyter-gpushare developers"
release = version = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
nitpicky = True
highlight_language = "text"
# Options and JSON are to be read as they are typed.
smartquotes = False

html_theme = "furo"
html_title = f"jupyter-gpushare {__version__}"
html_favicon = "../labextension/style/icons/gpushare.svg"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["tables.css"]


class FromCode(SphinxDirective):
    """A table of what the code says of itself: settings of a class, or commands."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make it."""
        head, rows = TABLES[self.arguments[0]]
        lines = [f"| {head} |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows())]
        return self.parse_text_to_nodes("\n".join(lines))


def settings(configurable: type[HasTraits]) -> Iterator[tuple[str, str]]:
    """Return the settings of a class's own, with their help."""
    for name, trait in sorted(configurable.class_own_traits(config=True).items()):
        yield name, re.sub(r"(?<!`)(\$\w+|\{'.*\})", r"`\1`", trait.help)


def magics() -> Iterator[tuple[str, str]]:
    """Return what ``%gpushare`` understands."""
    for verb, (_, text) in VERBS.items():
        yield usage(verb).replace("|", r"\|"), text


def commands() -> Iterator[tuple[str, str]]:
    """Return what ``gpushare`` understands."""
    (known,) = (a for a in build_parser()._actions if a.dest == "command")
    for action in known._get_subactions():
        yield f"gpushare {action.dest}", str(action.help)


TABLES: dict[str, tuple[str, Callable[[], Iterator[tuple[str, str]]]]] = {
    "GpuShare": ("`c.GpuShare` | meaning", partial(settings, GpuShare)),
    "GpuShareProvisioner": (
        "`c.GpuShareProvisioner` | meaning",
        partial(settings, GpuShareProvisioner),
    ),
    "NodeScheduler": ("`c.NodeScheduler` | meaning", partial(settings, NodeScheduler)),
    "GpuShareHub": ("`c.GpuShareHub` | meaning", partial(settings, GpuShareHub)),
    "magics": ("command | what it does", magics),
    "commands": ("command | what it does", commands),
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this file defines."""
    app.add_directive("from-code", FromCode)
    return {"parallel_read_safe": True}
