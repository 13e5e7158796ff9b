# SPDX-License-Identifier: BSD-3-Clause
"""The preloaded interposer, through ctypes."""

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from . import deferred
from .faults import Failure


class Interposer:
    """The preloaded library, as csrc/interposer/client/api.h declares it."""

    def __init__(self, library: Any) -> None:
        text = ctypes.c_char_p
        functions: List[Tuple[str, Any, List[Any]]] = [
            ("gpushare_version", text, []),
            ("gpushare_attached", ctypes.c_int, [ctypes.POINTER(text)]),
            ("gpushare_cell_begin", None, [text]),
            ("gpushare_cell_end", None, [text]),
            ("gpushare_contended", ctypes.c_uint32, []),
            ("gpushare_take_interrupt", ctypes.c_int, []),
            ("gpushare_control", ctypes.c_int64, [text, ctypes.c_char_p, ctypes.c_size_t]),
            ("gpushare_group", text, []),
            ("gpushare_oversubscribe", ctypes.c_int, [ctypes.c_int, ctypes.POINTER(text)]),
            ("gpushare_oversubscribes", ctypes.c_int, []),
        ]
        for name, result, arguments in functions:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def cell_begin(self, msg_id: str) -> None:
        """A cell begins; never blocks."""
        self._library.gpushare_cell_begin(msg_id.encode())

    def cell_end(self, msg_id: str) -> None:
        """A cell ends; never blocks."""
        self._library.gpushare_cell_end(msg_id.encode())

    def contended(self) -> int:
        """How many others wait for the GPU."""
        return int(self._library.gpushare_contended())

    def take_interrupt(self) -> bool:
        """Whether a wait was cancelled since this was asked last."""
        return bool(self._library.gpushare_take_interrupt() == 1)

    def group(self) -> str:
        """The lease group of this process."""
        return bytes(self._library.gpushare_group() or b"").decode("utf-8", "replace")

    def oversubscribe(self, on: bool) -> None:
        """Allow or forbid that new allocations exceed the GPU's memory."""
        why = ctypes.c_char_p()
        if self._library.gpushare_oversubscribe(int(on), ctypes.byref(why)) != 0:
            reason = (why.value or b"the interposer gives no reason").decode("utf-8", "replace")
            raise Failure(f"this kernel cannot use more memory than the GPU has: {reason}")

    def oversubscribes(self) -> bool:
        """Whether this process may allocate more than the GPU has."""
        return bool(self._library.gpushare_oversubscribes() == 1)

    def out_of_the_way(self) -> Optional[str]:
        """Why the interposer lets everything pass, or None."""
        why = ctypes.c_char_p()
        if self._library.gpushare_attached(ctypes.byref(why)) >= 0:
            return None
        return (why.value or b"sharing is off").decode("utf-8", "replace")

    def control(self, op: str, **params: Any) -> Dict[str, Any]:
        """Ask the scheduler (docs/reference/control.md)."""
        return dict(deferred.module("control").ask(self._library, op, params))

    def attached(self) -> bool:
        """Whether this process is a client of the scheduler: it has used CUDA."""
        return bool(self._library.gpushare_attached(None) > 0)

    def attach(self) -> None:
        """Begin to use CUDA, and ignore errors: the user's own use of CUDA will report them."""
        self._library.cuInit(0)

    def adjust(self, **preferences: Any) -> Dict[str, Any]:
        """Set preferences for this kernel, also before it has used the GPU."""
        return self.control("adjust", group=self.group(), later=True, **preferences)


def find_interposer() -> Optional[Interposer]:
    """The library, if it was preloaded into this process."""
    try:
        return Interposer(ctypes.CDLL(None))
    except (AttributeError, OSError):
        return None
