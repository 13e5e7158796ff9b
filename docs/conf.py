# SPDX-License-Identifier: BSD-3-Clause
"""How ``make docs`` builds the documentation, and what of it is taken from the code."""

from __future__ import annotations

import re
import sys
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
from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner  # noqa: E402
from jupyter_gpushare.kernel_provisioner.in_kernel import help_text  # noqa: E402
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


class Settings(SphinxDirective):
    """The settings of a configurable class, with the help that they have in the code."""

    CLASSES = (GpuShare, GpuShareProvisioner)
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        (configurable,) = (c for c in self.CLASSES if c.__name__ == self.arguments[0])
        return self.parse_text_to_nodes("\n".join(table(configurable)))


def table(configurable: type[HasTraits]) -> list[str]:
    """Return the lines of a Markdown table of its own settings."""
    lines = ["| setting | meaning |", "|---|---|"]
    for name, trait in sorted(configurable.class_own_traits(config=True).items()):
        text = re.sub(r"(?<!`)(\$\w+|\{'.*\})", r"`\1`", trait.help)
        lines.append(f"| `c.{configurable.__name__}.{name}` | {text} |")
    return lines


class Help(SphinxDirective):
    """What ``%gpushare help`` or ``gpushare --help`` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the block."""
        text = help_text() if self.arguments[0] == "notebook" else commands()
        return [nodes.literal_block(text, text, language="text")]


def commands() -> str:
    """Return the subcommands of ``gpushare``, a line each."""
    (actions,) = (a for a in build_parser()._actions if a.dest == "command")
    known = actions._get_subactions()
    width = max(len(action.dest) for action in known)
    return "\n".join(f"{action.dest.ljust(width)}  {action.help}" for action in known)


def drop_empty_globs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let a pattern in the index match nothing: pages on deployment come one by one."""

    def kept(line: str) -> bool:
        return not re.fullmatch(r"[\w-]+\*", line) or any(HERE.glob(f"{line}.md"))

    if docname == "index":
        source[0] = "\n".join(line for line in source[0].splitlines() if kept(line))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this file defines."""
    app.add_directive("settings", Settings)
    app.add_directive("help", Help)
    app.connect("source-read", drop_empty_globs)
    return {"parallel_read_safe": True}
