# SPDX-License-Identifier: BSD-3-Clause
"""How IPython is left as it was."""

import re
from typing import Any


def unload(shell: Any, completed: str) -> None:
    """Take the hooks, the magics and the completion of the lines `completed` out of a shell."""
    _, cells, hint = shell._gpushare
    hooks = cells or hint
    if hooks is not None:
        hooks.remove()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpushare", None)
    _remove_completion(shell, completed)
    transformers = getattr(shell, "input_transformers_cleanup", [])
    # By name: another copy of this part may have been loaded.
    transformers[:] = [t for t in transformers if getattr(t, "__name__", "") != "exclusive_cell"]
    shell._gpushare = None


def _remove_completion(shell: Any, completed: str) -> None:
    completer = shell.Completer
    if hasattr(completer, "custom_matchers"):
        completer.custom_matchers = [
            matcher
            for matcher in completer.custom_matchers
            if getattr(matcher, "matcher_identifier", "") != "gpushare"
        ]
    else:
        shell.strdispatchers["complete_command"].regexs.pop(re.compile(completed), None)
