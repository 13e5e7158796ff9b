# SPDX-License-Identifier: BSD-3-Clause
"""``%gpushare`` and ``%%gpushare``."""

import json
import sys
from typing import Any, Callable, List, Optional

from .amounts import percent, size
from .cells import Cells
from .faults import Failure, log
from .interposer import Interposer
from .missing import what_is_missing
from .tables import NO_PART, Answer, Explanation, Help, History, Status, explanation_text
from .verbs import (
    DONE,
    OVERSUBSCRIPTION,
    PARSERS,
    VERBS,
    choices,
    help_text,
    literals,
    parse,
    ready_text,
)


class Magic:
    """``%gpushare`` and ``%%gpushare``."""

    def __init__(
        self, shell: Any, interposer: Optional[Interposer], cells: Optional[Cells]
    ) -> None:
        self._shell = shell
        self._interposer = interposer
        self._cells = cells

    def __call__(self, line: str, cell: Optional[str] = None) -> Optional[Answer]:
        """Do what the line says, and answer."""
        from IPython.core.error import UsageError

        try:
            verb, given, as_json = parse(line)
            if cell is not None and verb != "exclusive":
                raise Failure("%%gpushare has one subcommand: %%gpushare exclusive")
            if verb == "status" and self._interposer is None and not as_json:
                # An answer and no failure: papermill and nbconvert end at the first cell that fails.
                sys.stderr.write(f"gpushare: {what_is_missing()}\n")
                return None
            answer = self._answer(verb, given)
        except Failure as failure:
            raise UsageError(f"gpushare: {failure}") from None
        if as_json:
            print(json.dumps(answer.data, indent=2, sort_keys=True, ensure_ascii=False))
        elif verb in ("status", "explain", "history", "help"):
            return answer
        elif repr(answer):
            from IPython.display import display

            # Also where it is not the last of its cell.
            display(answer)  # type: ignore[no-untyped-call,unused-ignore]
        if cell is not None:
            self._run(cell)
        return None

    def _answer(self, verb: str, given: str) -> Answer:
        if verb == "help":
            return Help({"help": help_text()}, help_text())
        if self._interposer is None or self._cells is None:
            raise Failure(what_is_missing())
        interposer, own = self._interposer, self._interposer.group()
        if verb == "status":
            status = interposer.control("status", text=True)["status"]
            return Status(status, own, interposer.out_of_the_way())
        if verb == "history":
            return History(interposer.control("status", timeline=0)["status"], own)
        if verb == "explain":
            asked = {"group": given} if given else {}
            explanation = interposer.control("explain", text=True, **asked)["explanation"]
            return Explanation(explanation, explanation_text(explanation))
        if verb == "oversubscribe":
            if given:
                interposer.oversubscribe(given == "on")
            on = interposer.oversubscribes()
            return Answer({"oversubscribe": on}, OVERSUBSCRIPTION[on])
        if verb == "exclusive":
            return Answer(self._cells.keep_others_out(), self._but())
        if verb in ("release", "evict", "hibernate", "wake"):
            done = interposer.control(verb, group=given or own)
            return Answer(done, DONE[verb].format(given or "This kernel"))
        if verb == "ready":
            done = interposer.control("hint", group=given or own, kind="ready")
            return Answer(done, ready_text(given or "This kernel", done))
        if verb == "keep":
            return self._adjusted(f"keep {given}", keep=given == "on")
        if verb in PARSERS:
            preferences = PARSERS[verb](given)
            if given == "off":
                return self._adjusted(f"{verb} off", **preferences)
            ((what, asked),) = preferences.items()
            words = {"memory": size, "weight": "{:g}".format}.get(what, percent)
            return self._adjusted(what, words(asked), **preferences)
        return self._adjusted(verb, priority=verb)

    def _adjusted(self, what: str, amount: str = "", **preferences: Any) -> Answer:
        assert self._interposer is not None
        done = self._interposer.adjust(**preferences)
        said = [DONE[what].format("This kernel", amount), self._but()]
        return Answer(done, " ".join(filter(None, said)))

    def _but(self) -> str:
        why = None if self._interposer is None else self._interposer.out_of_the_way()
        return f"{NO_PART}{why}." if why else ""

    def _run(self, cell: str) -> None:
        # Only where the cell was not transformed before: `exclusive_cell`.
        source = self._shell.input_transformer_manager.transform_cell(cell)
        name = self._shell.compile.cache(source)
        exec(self._shell.compile(source, name, "exec"), self._shell.user_ns)

    def complete(self, sign: str, before: str) -> List[str]:
        """What may stand at the cursor after the sign (``%%``) and ``gpushare``; it may be written in part."""
        words = before.split(" ")[:-1]
        options = [] if "--json" in words else ["--json"]
        words = [word for word in words if word not in ("", "--json")]
        if not words:
            return (["exclusive"] if sign == "%%" else list(VERBS)) + options
        if len(words) > 1 or words[0] not in VERBS:
            return options
        offered = literals(words[0])
        if "GROUP" in choices(words[0]):
            offered += self._groups()
        return offered + options

    def _groups(self) -> List[str]:
        if self._interposer is None:
            return []
        try:
            groups = self._interposer.control("status")["status"]["groups"]
            return [str(group.get("name") or group["id"]) for group in groups]
        except Exception:
            # Nothing is offered then; the completer goes on with what others know.
            log.debug("completing groups", exc_info=True)
            return []


def exclusive_cell(lines: List[str]) -> List[str]:
    """Make ``%%gpushare exclusive`` a line before the rest, which so stays the cell's own code.

    Its tracebacks, its last value and its ``await`` are what they are without it, and the end of the cell is its end.
    """
    if not lines or lines[0].split() not in (
        ["%%gpushare", "exclusive"],
        ["%%gpushare", "exclusive", "--json"],
    ):
        return lines
    from IPython.core import inputtransformer2

    cell_magic: Callable[[List[str]], List[str]] = inputtransformer2.cell_magic
    rest = lines[1:]
    while rest and not rest[0].strip():
        rest.pop(0)
    # Only one that comes first is a cell magic.
    code = lines[1:] if not rest or not rest[0].startswith("%%") else cell_magic(rest)
    return [lines[0].lstrip()[1:], *code]
