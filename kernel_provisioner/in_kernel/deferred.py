# SPDX-License-Identifier: BSD-3-Clause
"""The modules that are loaded at the first ``%gpushare``: as they were when the kernel started.

An upgrade replaces the files while the kernel runs, and those of another version would not fit what the kernel has
loaded. So the kernel reads them all at its start, which is quick, and compiles them when it needs them.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Dict, Optional

from .faults import Failure, log

_PACKAGE = __name__.rpartition(".")[0]
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Kept:
    """Finds and loads modules of this package from the sources that were read."""

    def __init__(self) -> None:
        #: By name; None until they are read: then the files are what is loaded.
        self._sources: Optional[Dict[str, bytes]] = None

    def read(self) -> None:
        """Read the modules that are not loaded yet, at the first call only: later ones could find a newer version."""
        if self._sources is not None:
            return
        self._sources = {}
        for entry in os.listdir(_FOLDER):
            stem, extension = os.path.splitext(entry)
            name = f"{_PACKAGE}.{stem}"
            if extension == ".py" and stem != "__init__" and name not in sys.modules:
                with open(os.path.join(_FOLDER, entry), "rb") as file:
                    self._sources[name] = file.read()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Find a module for Python's ``import``."""
        if self._sources is None or not name.startswith(f"{_PACKAGE}."):
            return None
        if name not in self._sources:
            # Not from its file, which may be of another version.
            raise ModuleNotFoundError(f"{name} was missing when the kernel started", name=name)
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: Any) -> None:
        """Run a module's source."""
        assert self._sources is not None
        source, name = self._sources[module.__name__], module.__name__.rpartition(".")[2]
        path = os.path.join(_FOLDER, name + ".py")
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


_kept = _Kept()
#: Whether the files do not belong together.
_broken = False


def read() -> None:
    """Read what is loaded later."""
    try:
        _kept.read()
    except OSError:
        log.debug("%s", _FOLDER, exc_info=True)


def give_up() -> None:
    """Load nothing later, for what had to be loaded at the start could not be."""
    global _broken
    _broken = True


def module(name: str) -> Any:
    """Load a module at its first use.

    Raises
    ------
    Failure
        The files were incomplete, or of different versions, when the kernel started.
    """
    sys.meta_path.insert(0, _kept)
    try:
        if not _broken:
            return importlib.import_module(f"{_PACKAGE}.{name}")
    except Exception:
        log.debug("%s", name, exc_info=True)
    finally:
        # Python asks each finder at each import: ours has nothing else to find.
        sys.meta_path.remove(_kept)
    raise mismatch()


def mismatch() -> Failure:
    """Return the error for files that do not belong together."""
    return Failure(
        f"the files in {_FOLDER} are incomplete or of different versions, as they are during an upgrade; restart the "
        "kernel, and reinstall jupyter-gpushare if that does not help"
    )


def hide_files() -> None:
    """Keep ``%autoreload`` from loading the files of another version, where this package was loaded by its path."""
    if "." not in _PACKAGE:
        for name, found in list(sys.modules.items()):
            if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
                found.__dict__.pop("__file__", None)
