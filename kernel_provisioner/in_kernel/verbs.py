# SPDX-License-Identifier: BSD-3-Clause
"""The subcommands of ``%gpushare``: their arguments, and the sentence that confirms each."""

import difflib
import re
from typing import Any, Callable, Dict, List, Tuple

from .faults import Failure

#: By subcommand: its arguments (optional ones in brackets) and what it does.
VERBS: Dict[str, Tuple[str, str]] = {
    "status": ("", "show which notebooks use the GPU, which are waiting, and why"),
    "release": ("[GROUP]", "release the GPU now; a running cell queues again when it needs it"),
    "evict": ("[GROUP]", "release the GPU and evict its data to host memory until it is needed"),
    "hibernate": (
        "[GROUP]",
        "take an idle notebook off the GPU completely; its next cell wakes it",
    ),
    "wake": ("[GROUP]", "wake a hibernated notebook before its next cell does"),
    "ready": (
        "[GROUP]",
        "restore data to the GPU before the next cell needs it, if the GPU has room",
    ),
    "background": (
        "",
        "lower the priority: interactive notebooks go first, and this one is evicted first",
    ),
    "interactive": ("", "go ahead of background notebooks, however long the cells run"),
    "agent": ("", "let people's cells go first, and go ahead of background notebooks"),
    "auto": (
        "",
        "choose the class: interactive when a cell starts, background after 2 s of GPU time",
    ),
    "keep": ("on|off", "keep idle data on the GPU until another notebook has waited for 5 min"),
    "limit": ("SIZE|N%|off", "limit memory on each GPU (20GiB) or GPU time (50%)"),
    "memory": ("SIZE|off", "limit memory on each GPU (20GiB); allocations beyond it fail"),
    "request": ("N%|off", "guarantee a share of a GPU's time, such as 25%"),
    "weight": ("N", "set the weight for spare GPU time: 2 gets twice as much as 1 (the default)"),
    "oversubscribe": ("[on|off]", "let new allocations exceed the GPU's memory"),
    "exclusive": (
        "",
        "keep the GPU until this cell ends; %%gpushare exclusive: for the whole cell",
    ),
    "explain": ("[GROUP]", "explain the order of the queue, and what a notebook is waiting for"),
    "history": ("", "list which notebooks ran, waited or were evicted in the last 10 minutes"),
    "help": ("", "show this help"),
}


#: Sentences that confirm a subcommand, with the name of the notebook.
DONE = {
    "release": "{} has released the GPU.",
    "evict": "{} has released the GPU, and its data is being evicted to host memory.",
    "hibernate": "{} will be hibernated as soon as it is idle. Its next cell wakes it.",
    "wake": "{} will wake as soon as the GPU has room for it.",
    "ready": "{} is getting ready: its data is restored as soon as the GPU has room.",
    "background": "{} now has low priority: interactive notebooks go first, and its data is evicted first.",
    "agent": "{} now counts as an agent: people's cells go first, and it goes ahead of background notebooks.",
    "interactive": "{} now goes ahead of background notebooks, however long its cells run.",
    "auto": "{} is now interactive when a cell starts, and background after 2 s of GPU time.",
    "keep on": "{} keeps its data on the GPU while it is idle, until another notebook has waited for 5 min.",
    "keep off": "{} keeps its data on the GPU only until another notebook needs the memory.",
    "memory": "{} can now use at most {} on each GPU. Memory that is already allocated stays.",
    "limit": "{} can now use at most {} of a GPU's time.",
    "limit off": "{} no longer has a limit on memory or GPU time.",
    "memory off": "{} no longer has a limit on memory.",
    "request": "{} is now guaranteed {} of a GPU's time. While it has had less, it goes ahead of the others.",
    "request off": "{} is no longer guaranteed GPU time.",
    "weight": "{} now has the weight {} for spare GPU time.",
}


#: Sentences that confirm ``%gpushare oversubscribe``.
OVERSUBSCRIPTION = {
    True: "New allocations can exceed the GPU's memory. Data that does not fit is used in host memory over "
    "PCIe, which is slower.",
    False: "New allocations can no longer exceed the GPU's memory. Memory that is already allocated stays.",
}


def ready_text(name: str, done: Dict[str, Any]) -> str:
    """Return what the scheduler does to get a notebook ready, or why it does nothing."""
    if done["code"] == "ready":
        return f"{name} is ready: all of its memory is on the GPU."
    if done["prefetch"] is None and done["code"] != "soon":
        return f"{name} is {done['text']}."
    return DONE["ready"].format(name)


def usage(verb: str) -> str:
    """Return how to write a subcommand."""
    return f"%gpushare {verb} {VERBS[verb][0]}".strip()


def help_text() -> str:
    """Return the help that ``%gpushare?`` shows."""
    width = max(len(usage(verb)) for verb in VERBS)
    lines = [f"{usage(verb).ljust(width)}  {VERBS[verb][1]}" for verb in VERBS]
    return "\n".join(
        [
            "Show which notebooks use the GPU, and control how this notebook shares it.",
            "",
            *lines,
            "",
            "GROUP is a notebook's name, its ID, or the start of its ID. The default is this notebook.",
            "Add --json to print the result as JSON.",
        ]
    )


def parse(line: str) -> Tuple[str, str, bool]:
    """Return the subcommand, its argument, and whether the line asks for JSON."""
    words = line.split()
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    if "--help" in words or "-h" in words:
        return "help", "", as_json
    for word in words:
        if word.startswith("-"):
            raise Failure(f"unknown option {word!r}. The options are --json and --help.")
    verb, given = (words[0], " ".join(words[1:])) if words else ("status", "")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        if near:
            raise Failure(f"unknown subcommand {verb!r}. Did you mean {usage(near[0])}?")
        raise Failure("unknown subcommand {!r}. Use {}".format(verb, " | ".join(map(usage, VERBS))))
    if not _accepts(verb, given):
        problem = f"invalid argument {given!r} for {verb}" if given else f"{verb} needs an argument"
        raise Failure(f"{problem}. Use {usage(verb)}")
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
    """Return the alternatives for a subcommand's argument."""
    arguments = VERBS[verb][0].strip("[]")
    return arguments.split("|") if arguments else []


def literals(verb: str) -> List[str]:
    """Return the arguments that are keywords."""
    return [choice for choice in choices(verb) if choice.islower()]


def parse_size(text: str) -> int:
    """Bytes of a size such as ``20GiB`` or ``1.5G``, in powers of 1024; 0 if it is invalid."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?$", text, re.ASCII | re.IGNORECASE)
    if match is None:
        return 0
    factor = 1 << 10 * " KMGT".index(match.group(2).upper() or " ")
    number = match.group(1)
    # Whole numbers stay exact.
    amount = int(float(number) * factor) if "." in number else int(number) * factor
    return amount if amount < 1 << 63 else 0


def parse_limit(text: str) -> Dict[str, Any]:
    """Return the preferences that a limit sets: memory, GPU time, or neither."""
    if text == "off":
        return {"memory": 0, "limit": 0.0}
    if text.endswith("%"):
        return {"limit": parse_part(text)}
    if parse_size(text) == 0:
        raise Failure(
            f"invalid limit {text!r}. Use a size such as 20GiB, a percentage such as 50%, or off."
        )
    return parse_memory(text)


def parse_memory(text: str) -> Dict[str, Any]:
    """Return the preference that a size sets, or no limit (``off``)."""
    amount = parse_size(text)
    if text != "off" and amount == 0:
        raise Failure(f"invalid size {text!r}. Use a number with a unit, such as 20GiB, or off.")
    return {"memory": amount}


def parse_part(text: str) -> float:
    """Return a percentage of a GPU's time, such as ``25%``, as a fraction; 0 for ``off``."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*%$", text, re.ASCII)
    part = 0.0 if match is None else float(match.group(1)) / 100
    if text != "off" and not 0 < part <= 1:
        raise Failure(
            f"invalid share of a GPU's time {text!r}. Use a percentage such as 25%, or off."
        )
    return part


def parse_weight(text: str) -> float:
    """Return a weight, which is above 0."""
    match = re.match(r"\d+(?:\.\d+)?$", text, re.ASCII)
    weight = 0.0 if match is None else float(text)
    if not 0 < weight <= 1000:
        raise Failure(f"invalid weight {text!r}. Use a number above 0, up to 1000.")
    return weight


#: By subcommand: converts its argument to preferences.
PARSERS: Dict[str, Callable[[str], Dict[str, Any]]] = {
    "limit": parse_limit,
    "memory": parse_memory,
    "request": lambda text: {"request": parse_part(text)},
    "weight": lambda text: {"weight": parse_weight(text)},
}
