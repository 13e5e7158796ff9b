# SPDX-License-Identifier: BSD-3-Clause
"""Waits for the GPU that the user interrupts."""

import signal
import sys
import threading
from typing import Any, Callable, Dict, Optional

from .interposer import Interposer


class Interrupts:
    """Shows what a cancelled wait made of a cell as what it is: KeyboardInterrupt.

    A wait for the GPU that is cancelled returns an error to its caller, which raises what it raises for CUDA errors.
    Python's own KeyboardInterrupt may come in before, after, or amid IPython's work on that exception.
    """

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._original: Optional[Callable[..., None]] = None
        #: By thread: the interrupt that was shown in its cell.
        self._shown: Dict[int, KeyboardInterrupt] = {}

    def install(self) -> None:
        """Stand before the shell's way of showing exceptions."""
        self._original = self._shell.showtraceback
        self._shell.showtraceback = self._showtraceback

    def remove(self) -> None:
        """Step aside."""
        # Another may have wrapped it since.
        if self._shell.showtraceback == self._showtraceback:
            self._shell.showtraceback = self._original

    def correct(self, result: Any) -> None:
        """Make the cell's result, and so the reply to the front end, say the same as what was shown."""
        shown = self._shown.pop(threading.get_ident(), None)
        if result is None:
            return
        error = result.error_before_exec or result.error_in_exec
        if shown is None and isinstance(error, Exception) and self._interposer.take_interrupt():
            shown = KeyboardInterrupt()
        if shown is not None and not isinstance(error, KeyboardInterrupt):
            result.error_before_exec = None
            result.error_in_exec = shown

    def _showtraceback(self, *args: Any, **kwargs: Any) -> None:
        assert self._original is not None
        try:
            interrupted = self._interposer.take_interrupt()
        except KeyboardInterrupt:
            interrupted = True
        if not interrupted:
            self._original(*args, **kwargs)
            return
        held = _hold_sigint()
        try:
            given = args[0] if args else kwargs.get("exc_tuple")
            _, value, trace = given or sys.exc_info()
            shown = (
                value
                if isinstance(value, KeyboardInterrupt)
                else KeyboardInterrupt("while waiting for the GPU")
            )
            # Neither the CUDA error that the cancelled wait returned nor what came of it is news.
            shown.__cause__ = shown.__context__ = None
            shown.__suppress_context__ = True
            self._shown[threading.get_ident()] = shown
            kwargs.pop("exc_tuple", None)
            shown = shown.with_traceback(trace)
            self._original((KeyboardInterrupt, shown, trace), *args[1:], **kwargs)
        finally:
            _restore_sigint(held)


def _hold_sigint() -> Any:
    """Ignore SIGINT: if it arrives while a traceback is being formatted, the traceback is lost."""
    if threading.current_thread() is not threading.main_thread():
        return None
    for _ in range(3):
        try:
            return signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            # This was the one.
            continue
    return None


def _restore_sigint(handler: Any) -> None:
    if handler is not None:
        signal.signal(signal.SIGINT, handler)
