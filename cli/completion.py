# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare completion``: completion of commands, options and names of notebooks in shells."""

from __future__ import annotations

import argparse
from typing import Any

DESCRIPTION = """\
Print the script that lets a shell complete commands, options and the names of notebooks when you press Tab.

bash: add this line to ~/.bashrc:
  eval "$(gpushare completion bash)"

zsh: add this line to ~/.zshrc, after compinit:
  eval "$(gpushare completion zsh)"

fish: run this once:
  gpushare completion fish > ~/.config/fish/completions/gpushare.fish
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("completion", description=DESCRIPTION)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["gpushare"], shell=args.shell))
    return 0
