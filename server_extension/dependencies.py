# SPDX-License-Identifier: BSD-3-Clause
"""Compares the installed packages with the versions that jupyter-gpushare declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "jupyter-gpushare"
#: Extras for users; the others are for work on this package.
EXTRAS = ("demo", "jupyterhub", "kubernetes", "plots")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A package that does not have a declared version.

    Attributes
    ----------
    package
        Its name.
    required
        The declared versions, such as ``>=2.16``.
    installed
        The installed version, or None.
    extra
        The optional part that declares it; empty: every part needs it.
    """

    package: str
    required: str
    installed: str | None
    extra: str

    def __str__(self) -> str:
        found = f"{self.installed} is installed" if self.installed else "it is not installed"
        user = f"{DISTRIBUTION}[{self.extra}]" if self.extra else DISTRIBUTION
        return f"{user} requires {self.package}{self.required}, but {found}"


def mismatches() -> Iterator[Mismatch]:
    """Find the packages of this environment that are missing or too old; of optional packages, only the latter."""
    declared = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    for requirement in declared:
        extra = _extra(requirement)
        if extra is None:
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            if not extra:
                yield Mismatch(requirement.name, str(requirement.specifier), None, "")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield Mismatch(requirement.name, str(requirement.specifier), installed, extra)


def mismatch(package: str) -> Mismatch | None:
    """Return what is wrong with the version of one package, or None."""
    name = canonicalize_name(package)
    return next((found for found in mismatches() if canonicalize_name(found.package) == name), None)


def _extra(requirement: Requirement) -> str | None:
    """Return the extra that declares a requirement, or an empty string; None where it does not apply here."""
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return ""
    return next((extra for extra in EXTRAS if marker.evaluate({"extra": extra})), None)
