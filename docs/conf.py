# SPDX-License-Identifier: BSD-3-Clause
"""How ``make docs`` builds the documentation, and what of it is taken from the code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from traitlets import Bool, Dict, Enum, Float, HasTraits, Int, List, TraitType, Unicode, Union

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from jupyter_gpushare import __version__  # noqa: E402
from jupyter_gpushare.cli.main import COMMANDS, build_parser  # noqa: E402
from jupyter_gpushare.hub.config import GpuShareHub  # noqa: E402
from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner  # noqa: E402
from jupyter_gpushare.kernel_provisioner.in_kernel.verbs import VERBS, usage  # noqa: E402
from jupyter_gpushare.scheduler.node.config import NodeScheduler  # noqa: E402
from jupyter_gpushare.scheduler.views.words.reasons import REASONS  # noqa: E402
from jupyter_gpushare.server_extension.config import GpuShare  # noqa: E402

project = "jupyter-gpushare"
author = "The jupyter-gpushare developers"
release = version = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
# Pages include what is there.
exclude_patterns = ["_includes"]
# Codes have anchors: [`a_code`]{#a-code}.
myst_enable_extensions = ["attrs_inline"]
nitpicky = True
# The width of help texts.
os.environ["COLUMNS"] = "100"
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


#: An example of each setting, as it is written after ``=``. tests/docs checks that the code accepts each of them.
EXAMPLES: dict[type[HasTraits], dict[str, str]] = {
    GpuShare: {
        "agents": '["my-agent/"]',
        "anti_thrash": '"on"',
        "detect_agents": "False",
        "disk_after": "600",
        "disk_encryption": "True",
        "disk_folder": '"/var/lib/gpushare/disk"',
        "disk_size": '"500GiB"',
        "enabled": "False",
        "hibernate_after": "1800",
        "host": '"never"',
        "host_memory": '"64GiB"',
        "policy": '"fcfs"',
        "prefetch": "False",
        "prefetch_likelihood": "0.8",
        "quantum": "5",
        "record": '"/tmp/gpushare.rec"',
        "reservation_hold": "30",
        "reserve": '"512MiB"',
        "shares": '{"user:ada": {"request": 0.5}}',
        "socket": '"/tmp/ada/scheduler.sock"',
    },
    GpuShareProvisioner: {
        "backend": '"plain"',
        "enabled": "False",
        "in_kernel_part": "False",
        "interrupt_timeout": "0.5",
        "library_dir": '"/opt/gpushare/lib"',
        "memory": '"20GiB"',
        "oversubscribe": "True",
    },
    NodeScheduler: {
        "allowed_groups": '["gpu-users"]',
        "anti_thrash": '"on"',
        "connections": "512",
        "disk_after": "600",
        "disk_encryption": "True",
        "disk_folder": '"/var/lib/gpushare/disk"',
        "disk_size": '"500GiB"',
        "hibernate_after": "1800",
        "hibernator_socket": '"/run/gpushare-hibernator/hibernator.sock"',
        "host_memory": '"256GiB"',
        "hub_api_url": '"http://127.0.0.1:8081/hub/api"',
        "log_level": '"info"',
        "policy": '"fcfs"',
        "prefetch": "False",
        "prefetch_likelihood": "0.8",
        "prepare_host_memory": "True",
        "prices": '{"gpu_hour": 2.5, "kwh": 0.3, "currency": "EUR"}',
        "quantum": "5",
        "record": '"/tmp/gpushare.rec"',
        "reservation_hold": "30",
        "reserve": '"512MiB"',
        "revoke_deadline": "60",
        "shared_uids": "[1000]",
        "shares": '{"user:*": {"limit": 0.5, "gpus": 1}}',
        "socket": '"/run/gpushare/scheduler.sock"',
        "socket_group": '"root"',
        "socket_mode": '"0666"',
        "state_dir": '"/var/lib/gpushare"',
        "ticket_lifetime": "86400",
        "unidentified": "128",
    },
    GpuShareHub: {
        "certfile": '"/etc/gpushare/hub.crt"',
        "discover": '["gpushare-hub.jhub.svc:8990"]',
        "history": "200",
        "interval": "5",
        "keyfile": '"/etc/gpushare/hub.key"',
        "local": "False",
        "node_name": '"gpu1"',
        "nodes": '{"gpu2": "http://gpu2:8990/"}',
        "open_metrics": "True",
        "service_name": '"gpushare"',
        "socket": '"/run/gpushare/scheduler.sock"',
        "token_file": '"/etc/gpushare/token"',
        "url": '"http://0.0.0.0:8990/services/gpushare/"',
    },
}

#: What a setting's type is called.
TYPES = {Bool: "boolean", Dict: "dictionary", Float: "number", Int: "integer", Unicode: "text"}


class FromCode(SphinxDirective):
    """Text that the code has: tables of settings or commands, and the help texts of commands."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make it."""
        text = "\n".join(MADE[self.arguments[0]]())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def table(head: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table."""
    yield f"| {head} |"
    yield "|---" * (head.count("|") + 1) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def settings(configurable: type[HasTraits]) -> Iterator[str]:
    """Return the table of a class's own settings."""
    rows = []
    for name, trait in sorted(configurable.class_own_traits(config=True).items()):
        text, default = meaning(trait)
        example = EXAMPLES[configurable][name]
        rows.append((f"`{name}`", type_name(trait), default, f"`{example}`", text))
    return table("name | type | default | example | meaning", rows)


def meaning(trait: TraitType[Any, Any]) -> tuple[str, str]:
    """Return the help of a setting without its last part, and that part: the default."""
    text = re.sub(r"(?<!`)(\$\w+|\{'.*\})", r"`\1`", trait.help)
    found = re.search(r" ?\(default: ([^()]*)\)", text)
    if found is None:
        return text, "none"
    default = found[1]
    if isinstance(trait, Bool):
        default = {"yes": "`True`", "no": "`False`", "True": "`True`", "False": "`False`"}.get(
            default, default
        )
    elif re.fullmatch(r"[\w./'-]+", default) and default not in ("none", "nothing"):
        default = f"`{default}`"
    return text[: found.start()] + text[found.end() :], default


def type_name(trait: TraitType[Any, Any]) -> str:
    """Return what kind of value a setting takes."""
    if isinstance(trait, Enum):
        return ", ".join(f"`{value}`" for value in trait.values or ())
    if isinstance(trait, Union):
        return " or ".join(type_name(each) for each in trait.trait_types)
    if isinstance(trait, List):
        return f"list of {type_name(trait._trait)}s".replace("texts", "text")
    return TYPES[type(trait)]


def magics() -> Iterator[str]:
    """Return the table of what ``%gpushare`` understands."""
    rows = [(f"`{usage(verb)}`", text) for verb, (_, text) in VERBS.items()]
    return table("command | what it does", rows)


def commands() -> Iterator[str]:
    """Return the table of all commands."""
    rows = [
        (f"[`gpushare {name}`](#gpushare-{name})", command.summary)
        for name, command in COMMANDS.items()
    ]
    return table("command | what it does", rows)


def helps() -> Iterator[str]:
    """Return a section for each command with the text of its ``--help``."""
    for name in COMMANDS:
        parser = subparsers(build_parser(name))[name]
        yield from (f"### `gpushare {name}`", "", "```text", parser.format_help().rstrip(), "```")
        for inner, part in subparsers(parser).items():
            yield from (f"`gpushare {name} {inner}`:", "", "```text")
            yield from (part.format_help().rstrip(), "```")
        yield ""


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's subcommands."""
    return {
        name: part
        for found in parser._actions
        if isinstance(found, argparse._SubParsersAction)
        for name, part in found.choices.items()
    }


def reasons() -> Iterator[str]:
    """Return the table of the sentences for the codes of reasons, with values such as a scheduler gives."""
    values = dict.fromkeys(("holder", "ahead"), "train") | dict.fromkeys(
        ("holder_name", "ahead_name"), "train.ipynb"
    )
    times = dict.fromkeys(("yields_in", "until_in", "for", "kernel_for", "estimate"), 9.0)
    sizes = {"need": 3 << 30, "lack": 1 << 30, "arrived": 1 << 30, "footprint": 3 << 30}
    sizes |= {"foreign": 4 << 30, "fixed": 2 << 30, "pending_reclaim": 1 << 30}
    others = {"victims": ["plots.ipynb"], "whose": "user:ada", "gpus": 1, "own": 1, "kernel": None}
    given = {**values, **times, **sizes, **others, "clients": 2, "attempts": 2, "error": None}
    rows = [
        (f"[`{code}`](#{code.replace('_', '-')})", sentence(given))
        for code, sentence in REASONS.items()
    ]
    return table("code | sentence", rows)


MADE: dict[str, Callable[[], Iterator[str]]] = {
    **{each.__name__: partial(settings, each) for each in EXAMPLES},
    "magics": magics,
    "commands": commands,
    "helps": helps,
    "reasons": reasons,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this file defines."""
    app.add_directive("from-code", FromCode)
    return {"parallel_read_safe": True}
