# SPDX-License-Identifier: BSD-3-Clause
"""A code and its parameters become a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: What a sentence raises whose parameters are not those that it expects: programs may give notices any.
UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


def code_text(
    sentences: Mapping[str, Callable[..., str]], found: Mapping[str, Any] | None, *more: Any
) -> str:
    """Return the sentence for a code.

    Parameters
    ----------
    sentences
        By code, what makes the sentence from ``more`` and the parameters.
    found
        The ``code`` and its ``params``. A code without a sentence, such as one of another package's policy, stays a
        code; None has no sentence.
    more
        What the sentence needs besides its parameters.
    """
    if not found:
        return ""
    code = str(found.get("code", ""))
    try:
        return sentences[code](*more, found.get("params", {}))
    except UNFIT:
        return code.replace("_", " ")
