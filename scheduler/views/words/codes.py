# SPDX-License-Identifier: BSD-3-Clause
"""Turns a code and its parameters into a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: What a sentence raises if its parameters are not as expected, because programs can give notices any parameters.
UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


def code_text(
    sentences: Mapping[str, Callable[..., str]], found: Mapping[str, Any] | None, *more: Any
) -> str:
    """Return the sentence for a code.

    Parameters
    ----------
    sentences
        By code: a function that makes the sentence from ``more`` and the parameters.
    found
        The ``code`` and its ``params``; None has no sentence. A code without a sentence, such as that of a policy from
        another package, is returned as it is.
    more
        What the sentence needs in addition to its parameters.
    """
    if not found:
        return ""
    code = str(found.get("code", ""))
    try:
        return sentences[code](*more, found.get("params", {}))
    except UNFIT:
        return code.replace("_", " ")
