# SPDX-License-Identifier: BSD-3-Clause
"""The part that runs inside of IPython kernels, in whatever environment they live.

A folder that is loaded by its path; standard library only, in the syntax of Python 3.6. It finds the preloaded
interposer through ctypes, tells it when cells begin and end, gives torch's and cupy's unused memory back while others
wait, shows a cancelled wait as KeyboardInterrupt, and offers ``%gpushare``. Without the interposer, ``%gpushare`` says
what is missing.

A kernel loads the hooks at its start, and what ``%gpushare`` needs at the first use: each source that is loaded at the
start may have to be compiled, and users wait for it. A fault in here must never break a cell: each hook is guarded and
at worst leaves a line in the debug log.
"""

import importlib.util
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from . import deferred
from .faults import Failure, guarded, log

#: The line up to the cursor where something of ours may be completed: also in an assignment, and without its %.
COMPLETED = r"(.*%|\s*)gpushare\s+(.*)$"


class GpuShareMagic:
    """``%gpushare`` and ``%%gpushare``."""

    def __init__(self, shell: Any, interposer: Any, cells: Any) -> None:
        self._given = (shell, interposer, cells)
        self._magic: Any = None

    def __call__(self, line: str, cell: Optional[str] = None) -> Any:
        """Do what the line says, and answer."""
        try:
            magic = self._loaded()
        except Failure as failure:
            from IPython.core.error import UsageError

            raise UsageError(f"gpushare: {failure}") from None
        return magic(line, cell)

    def getdoc(self) -> str:
        """What ``%gpushare?`` shows."""
        try:
            return str(deferred.module("verbs").help_text())
        except Failure as failure:
            return str(failure)

    def complete(self, before: str) -> List[str]:
        """What may stand at the cursor, given the line up to there; it may be written in part."""
        match = re.match(COMPLETED, before)
        if match is None:
            return []
        try:
            return list(self._loaded().complete(match.group(1).strip(), match.group(2)))
        except Failure:
            log.debug("completing", exc_info=True)
            return []

    def _loaded(self) -> Any:
        if self._magic is None:
            self._magic = deferred.module("magics").Magic(*self._given)
        return self._magic


def exclusive_cell(lines: List[str]) -> List[str]:
    """Make ``%%gpushare exclusive`` a line before the rest, which so stays the cell's own code."""
    if not lines or not lines[0].lstrip().startswith("%%gpushare"):
        return lines
    try:
        transformed: List[str] = deferred.module("magics").exclusive_cell(lines)
    except Failure:
        # The magic tells.
        return lines
    return transformed


# Consoles ask whether a cell is complete, and a cell magic is so after an empty line; without this they skip it there.
exclusive_cell.has_side_effects = True  # type: ignore[attr-defined]


def load(shell: Any = None) -> None:
    """Install everything into IPython; once, and without a word."""
    if shell is None:
        from IPython import get_ipython  # type: ignore[attr-defined,unused-ignore]

        shell = get_ipython()
    _run_skipped_startup(shell)
    if shell is None or getattr(shell, "_gpushare", None) is not None:
        return
    try:
        hooks = _install_hooks(shell)
    except Exception:
        log.debug("hooks", exc_info=True)
        deferred.give_up()
        hooks = (None, None, None)
    deferred.read()
    deferred.hide_files()
    magic = GpuShareMagic(shell, *hooks[:2])
    shell.register_magic_function(magic, "line_cell", "gpushare")
    # IPython 7 and newer.
    if hasattr(shell, "input_transformers_cleanup"):
        shell.input_transformers_cleanup.append(exclusive_cell)
    _install_completion(shell, magic)
    _note_as_loaded(shell)
    shell._gpushare = hooks


def _install_hooks(shell: Any) -> Tuple[Any, Any, Any]:
    """Follow the shell's cells: the interposer, what tells it of them, and what explains why there is none."""
    from .interposer import find_interposer

    interposer = find_interposer()
    if interposer is None:
        from .out_of_memory import OutOfMemoryHint

        hint = OutOfMemoryHint(shell)
        hint.install()
        return None, None, hint
    from .cells import Cells

    cells = Cells(shell, interposer)
    cells.install()
    return interposer, cells, None


def offer(shell: Any) -> None:
    """Load this part into an IPython that starts, unless the provisioner has it load its own version."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    if "_gpushare_in_kernel" not in getattr(app, "code_to_run", ""):
        load(shell)


@guarded
def _note_as_loaded(shell: Any) -> None:
    """Let ``%load_ext jupyter_gpushare`` succeed in an environment where the package is not installed."""
    if importlib.util.find_spec("jupyter_gpushare") is None:
        shell.extension_manager.loaded.add("jupyter_gpushare")


@guarded
def _install_completion(shell: Any, magic: GpuShareMagic) -> None:
    try:
        # IPython 8.6 and newer: nothing else is offered then, such as Jedi's keywords.
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        shell.set_hook(
            "complete_command",
            lambda _, event: magic.complete(event.text_until_cursor),
            re_key=COMPLETED,
        )
        return

    def complete(context: Any) -> Dict[str, Any]:
        words = magic.complete(context.text_until_cursor)
        fitting = [word for word in words if word.startswith(context.token)]
        return {
            "completions": [SimpleCompletion(word) for word in fitting],
            "suppress": bool(words),
            "ordered": True,
        }

    as_matcher = context_matcher(identifier="gpushare")  # type: ignore[no-untyped-call,unused-ignore]
    shell.Completer.custom_matchers.append(as_matcher(complete))


def _run_skipped_startup(shell: Any) -> None:
    """Run the user's PYTHONSTARTUP, which IPython skips where it is given code to run."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    startup = os.environ.get("PYTHONSTARTUP")
    if app is None or not startup or "_gpushare_in_kernel" not in getattr(app, "code_to_run", ""):
        return
    app.code_to_run = ""
    if not app.exec_PYTHONSTARTUP:
        return
    try:
        app._exec_file(startup)
    except Exception:
        app.log.warning("Unknown error in handling PYTHONSTARTUP file %s:", startup)
        shell.showtraceback()
    if app.hide_initial_ns:
        shell.user_ns_hidden.update(shell.user_ns)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext``, for kernels that were not started by us."""
    load(shell)
    interposer, _, hint = shell._gpushare
    if interposer is None:
        try:
            if hint is None:
                raise deferred.mismatch()
            print("gpushare: " + deferred.module("missing").what_is_missing())
        except Failure as failure:
            print(f"gpushare: {failure}")


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext``."""
    if getattr(shell, "_gpushare", None) is None:
        return
    try:
        deferred.module("unloading").unload(shell, COMPLETED)
    except Failure as failure:
        print(f"gpushare: {failure}")
