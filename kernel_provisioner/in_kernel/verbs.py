# SPDX-License-Identifier: BSD-3-Clause
"""What ``%gpushare`` understands: its verbs, their arguments, and what each has done."""

import difflib
import re
from typing import Any, Callable, Dict, List, Tuple

from .faults import Failure

#: What ``%gpushare`` understands: by verb, its arguments (in brackets: not needed) and what it does.
VERBS: Dict[str, Tuple[str, str]] = {
    "status": ("", "who uses the GPU, who waits, and why"),
    "release": ("[GROUP]", "give the GPU up now, though the cell goes on"),
    "offload": ("[GROUP]", "the same, and move the memory to the host; it comes back by itself"),
    "hibernate": (
        "[GROUP]",
        "take it off the GPU altogether when it is idle; its next cell wakes it",
    ),
    "wake": ("[GROUP]", "wake one that is hibernated, before its next cell does"),
    "background": ("", "wait behind the interactive ones; memory leaves the GPU first"),
    "interactive": ("", "come before those in the background, however long the cells are"),
    "auto": ("", "interactive from the begin of a cell, in the background after 2 s of GPU time"),
    "keep": ("on|off", "idle memory stays until somebody has waited for it for 5 min"),
    "limit": ("SIZE|N%|off", "most memory on each GPU, such as 20GiB, or most of its time, as 50%"),
    "memory": ("SIZE|off", "most memory on each GPU, such as 20GiB; beyond it: out of memory"),
    "request": ("N%|off", "guaranteed part of a GPU's time, such as 25%"),
    "weight": ("N", "part of the time that is spare: 2 gets twice as much as 1, the usual"),
    "oversubscribe": ("[on|off]", "what is allocated from now on may be more than the GPU has"),
    "exclusive": ("", "keep the GPU until this cell ends; %%gpushare exclusive: all of it"),
    "explain": ("[GROUP]", "which rule put whom before whom, and what it takes to be next"),
    "history": ("", "who ran, waited and moved in the last minutes"),
    "help": ("", "this text"),
}


#: What a verb has done, said of a kernel.
DONE = {
    "release": "{} gives the GPU up.",
    "offload": "{} gives the GPU up and moves its memory out.",
    "hibernate": "{} is taken off the GPU as soon as it is idle; its next cell wakes it.",
    "wake": "{} is awake as soon as there is room for it.",
    "background": "{} waits behind the interactive ones from now on, and its memory leaves the GPU first.",
    "interactive": "{} comes before those in the background from now on, however long its cells are.",
    "auto": "{} is interactive from the begin of each cell, and in the background once it has had 2 s of GPU time.",
    "keep on": "{} keeps its memory on the GPU while it is idle, until somebody has waited for it for 5 min.",
    "keep off": "{} keeps its memory on the GPU only until another needs the room.",
    "memory": "{} gets no more than {} on each GPU from now on; what it holds already stays.",
    "limit": "{} gets no more than {} of a GPU's time from now on.",
    "limit off": "{} has no limit any more, neither of memory nor of GPU time.",
    "memory off": "{} may have as much memory as there is again.",
    "request": "{} is guaranteed {} of a GPU's time from now on: below that it comes before the others.",
    "request off": "{} is guaranteed no time any more.",
    "weight": "{} has the weight {} from now on where GPU time is spare.",
}


#: What ``%gpushare oversubscribe`` answers.
OVERSUBSCRIPTION = {
    True: "What this kernel allocates from now on may be more than the GPU has: what has no room there is used from "
    "the host's memory, at the speed of the bus.",
    False: "What this kernel allocates from now on may be as much as the GPU has; what it holds already stays.",
}


def usage(verb: str) -> str:
    """How a verb is written."""
    return f"%gpushare {verb} {VERBS[verb][0]}".strip()


def help_text() -> str:
    """What ``%gpushare?`` shows."""
    width = max(len(usage(verb)) for verb in VERBS)
    lines = [f"{usage(verb).ljust(width)}  {VERBS[verb][1]}" for verb in VERBS]
    return "\n".join(
        [
            "Who uses the GPU and who waits for it; steer what this kernel has of it.",
            "",
            *lines,
            "",
            "GROUP is a name, an id, or a beginning of the id; this kernel if it is left out.",
            "With --json the answer is printed as JSON.",
        ]
    )


def parse(line: str) -> Tuple[str, str, bool]:
    """Read what follows ``%gpushare``: the verb, its argument, and whether JSON is wanted."""
    words = line.split()
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    if "--help" in words or "-h" in words:
        return "help", "", as_json
    for word in words:
        if word.startswith("-"):
            raise Failure(f"there is no option {word!r}; there are --json and --help")
    verb, given = (words[0], " ".join(words[1:])) if words else ("status", "")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        if near:
            raise Failure(f"there is no {verb!r}; did you mean {usage(near[0])}?")
        raise Failure("there is no {!r}; use {}".format(verb, " | ".join(map(usage, VERBS))))
    if not _accepts(verb, given):
        raise Failure(f"this is not understood: {verb} {given}".rstrip() + f"; use {usage(verb)}")
    return verb, given, as_json


def _accepts(verb: str, given: str) -> bool:
    arguments = VERBS[verb][0]
    if not given:
        return not arguments or arguments.startswith("[")
    words = choices(verb)
    if verb in PARSERS:
        try:
            PARSERS[verb](given)
        except Failure:
            return False
        return True
    return given in words or "GROUP" in words


def choices(verb: str) -> List[str]:
    """What may stand for a verb's argument."""
    arguments = VERBS[verb][0].strip("[]")
    return arguments.split("|") if arguments else []


def literals(verb: str) -> List[str]:
    """The arguments that are written as they stand."""
    return [choice for choice in choices(verb) if choice.islower()]


def parse_size(text: str) -> int:
    """Bytes of a size such as ``20GiB`` or ``1.5G``, in powers of 1024; 0 if it is none."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?$", text, re.ASCII | re.IGNORECASE)
    if match is None:
        return 0
    factor = 1 << 10 * " KMGT".index(match.group(2).upper() or " ")
    number = match.group(1)
    # Whole numbers stay exact.
    amount = int(float(number) * factor) if "." in number else int(number) * factor
    return amount if amount < 1 << 63 else 0


def parse_limit(text: str) -> Dict[str, Any]:
    """The wishes that a limit means: of memory, of GPU time, or none of either."""
    if text == "off":
        return {"memory": 0, "limit": 0.0}
    if text.endswith("%"):
        return {"limit": parse_part(text)}
    if parse_size(text) == 0:
        raise Failure(f"{text!r} is no limit; write for instance 20GiB, 50%, or off")
    return parse_memory(text)


def parse_memory(text: str) -> Dict[str, Any]:
    """The wish that a size means, or none of memory (``off``)."""
    amount = parse_size(text)
    if text != "off" and amount == 0:
        raise Failure(f"{text!r} is no size; write for instance 20GiB, or off")
    return {"memory": amount}


def parse_part(text: str) -> float:
    """A part of a GPU's time, such as ``25%``, as a fraction; 0 for ``off``."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*%$", text, re.ASCII)
    part = 0.0 if match is None else float(match.group(1)) / 100
    if text != "off" and not 0 < part <= 1:
        raise Failure(f"{text!r} is no part of a GPU's time; write for instance 25%, or off")
    return part


def parse_weight(text: str) -> float:
    """A weight, which is above 0."""
    match = re.match(r"\d+(?:\.\d+)?$", text, re.ASCII)
    weight = 0.0 if match is None else float(text)
    if not 0 < weight <= 1000:
        raise Failure(f"{text!r} is no weight; write a number above 0 and at most 1000")
    return weight


#: By verb, what its argument means: wishes.
PARSERS: Dict[str, Callable[[str], Dict[str, Any]]] = {
    "limit": parse_limit,
    "memory": parse_memory,
    "request": lambda text: {"request": parse_part(text)},
    "weight": lambda text: {"weight": parse_weight(text)},
}
