# SPDX-License-Identifier: BSD-3-Clause
"""A core's whole state as JSON, so that a recording can begin in the middle.

Every object is one entry of a table, and references are its numbers. So the order does not matter, and objects may
refer to each other. Only classes of the scheduler and of policies are made from a state. This runs none of their code,
so reading a recording does not run code from it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from itertools import islice
from types import MethodType
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from ..policies import available

_SCHEDULER = __package__.rpartition(".")[0]
#: The packages of a core's objects. None of them reads or writes anything but memory.
_PACKAGES = (f"{_SCHEDULER}.core.", f"{_SCHEDULER}.policies")
_ATOMS = frozenset((str, int, float, bool, type(None)))


class CheckpointError(Exception):
    """A state cannot be written or read. The message names the part."""


def encode(root: object, kind: type, without: Collection[str] = ()) -> list[Any]:
    """Return the table of an object and of all that it refers to. The object is the first entry.

    Parameters
    ----------
    root
        The object.
    kind
        The class as which it is written; the object may be of a subclass.
    without
        Attributes that the subclass has added.

    Raises
    ------
    CheckpointError
        Part of it cannot be written, such as an object of another package's policy.
    """
    return _Encoder().encode(root, kind, without)


def decode(table: Any) -> Any:
    """Return the object of a table.

    Raises
    ------
    CheckpointError
        It is not a table, or is of another release.
    """
    try:
        return _Decoder(table).decode()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the state that it begins with cannot be read: {error}") from None


class _Encoder:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        self._kinds: dict[type, tuple[str, list[str]]] = {}

    def encode(self, root: object, kind: type, without: Collection[str]) -> list[Any]:
        self._value(root)
        state = {name: self._value(v) for name, v in vars(root).items() if name not in without}
        # The list grows during this loop.
        return [[_name_of(kind), state], *map(self._entry, islice(self._objects, 1, None))]

    def _entry(self, found: Any) -> list[Any]:
        value = self._value
        kind = type(found)
        if kind is list:
            # Most are long ones of numbers.
            plain = _ATOMS.issuperset(map(type, found))
            return ["list", list(found) if plain else [value(item) for item in found]]
        if kind is dict or kind is OrderedDict:
            pairs = [[value(key), value(item)] for key, item in found.items()]
            return ["dict" if kind is dict else "ordered", pairs]
        if kind is deque:
            return ["deque", [value(item) for item in found], found.maxlen]
        if kind is set:
            return ["set", [value(item) for item in found]]
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _name_of(kind), _attributes(kind)
        name_of, names = known
        state = {name: value(getattr(found, name)) for name in names if hasattr(found, name)}
        for name, item in getattr(found, "__dict__", {}).items():
            state[name] = value(item)
        return [name_of, state]

    def _value(self, found: Any) -> Any:
        """Return an atom as it is, and anything else as a list: its kind, and its parts."""
        kind = type(found)
        if kind in _ATOMS:
            return found
        if kind is tuple:
            return ["tuple", *map(self._value, found)]
        if kind is frozenset:
            return ["frozenset", *map(self._value, found)]
        if kind is MethodType:
            return ["method", self._value(found.__self__), found.__name__]
        if isinstance(found, type):
            return ["class", _name_of(found)]
        if isinstance(found, tuple):
            return ["named", _name_of(kind), *map(self._value, found)]
        if isinstance(found, Struct):
            return ["named", _name_of(kind), *map(self._value, astuple(found))]
        number = self._numbers.get(id(found))
        if number is None:
            number = self._numbers[id(found)] = len(self._objects)
            self._objects.append(found)
        return [number]


class _Decoder:
    def __init__(self, table: list[Any]) -> None:
        self._table = table
        self._kinds: dict[str, type] = {}
        self._made = [self._make(entry) for entry in table]

    def decode(self) -> Any:
        # Members of a set or a dictionary may be asked for their hash, so objects get theirs first.
        for entry, made in zip(self._table, self._made, strict=True):
            if isinstance(entry[1], dict):
                for name, value in entry[1].items():
                    object.__setattr__(made, name, self._value(value))
                for name in _attributes(type(made)):
                    # It is of another release, and would fail later, in the middle of an event.
                    if not hasattr(made, name):
                        raise CheckpointError(f"it has no {name!r} of a {type(made).__name__}")
        for entry, made in zip(self._table, self._made, strict=True):
            if entry[0] in ("dict", "ordered"):
                made.update((self._value(key), self._value(value)) for key, value in entry[1])
            elif entry[0] in ("list", "deque"):
                made.extend(map(self._value, entry[1]))
            elif entry[0] == "set":
                made.update(map(self._value, entry[1]))
        return self._made[0]

    def _make(self, entry: list[Any]) -> Any:
        match entry[0]:
            case "list":
                return []
            case "dict":
                return {}
            case "ordered":
                return OrderedDict()
            case "deque":
                return deque(maxlen=entry[2])
            case "set":
                return set()
        kind = self._kinds.get(entry[0])
        if kind is None:
            kind = self._kinds[entry[0]] = _class_of(entry[0])
        return object.__new__(kind)

    def _value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        match value[0]:
            case "tuple":
                return tuple(map(self._value, value[1:]))
            case "frozenset":
                return frozenset(map(self._value, value[1:]))
            case "method":
                owner = self._value(value[1])
                return MethodType(getattr(type(owner), value[2]), owner)
            case "class":
                return _class_of(value[1])
            case "named":
                return _class_of(value[1])(*map(self._value, value[2:]))
        return self._made[value[0]]


def _attributes(kind: type) -> list[str]:
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return [
        name
        for base in kind.__mro__
        for name in _slots(base)
        if name not in ("__dict__", "__weakref__")
    ]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _name_of(kind: type) -> str:
    if not _is_known(kind):
        raise CheckpointError(
            f"an object of the class {kind.__module__}.{kind.__qualname__} cannot be written"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_of(name: str) -> type:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not _is_known(found):
        raise CheckpointError(f"there is no class {name} here")
    return found


def _is_known(kind: type) -> bool:
    module = kind.__module__
    if module.startswith(_PACKAGES):
        return True
    # A policy of another package has the classes of its module.
    return module in {getattr(policy, "__module__", "") for policy in available().values()}
