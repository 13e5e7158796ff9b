# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of control requests (``control.md``): one class for each shape, and a table of operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.structs import asdict, fields

from ..core import messages as ev

#: Longest name of one of a user's servers, and longest text for all users.
LONGEST_SERVER, LONGEST_TEXT = 255, 500
#: Bytes that no machine has.
LARGEST = 1 << 60
#: Seconds on CLOCK_MONOTONIC, and seconds since 1970, that no machine reaches.
LATEST, LATEST_WALL = 1e12, 1e11
#: More cells than wait in any Jupyter kernel.
MOST_CELLS = 1_000_000_000


class RequestError(Exception):
    """A control request cannot be done; the message is the sentence for its sender."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        #: For programs, where they can do something about it.
        self.code = code


class Body(Struct, kw_only=True):
    """A request's parameters. Unknown ones are ignored: a later release may add them."""

    def given(self, *omitted: str) -> dict[str, Any]:
        """Return the parameters that are not null, except those omitted."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and name not in omitted
        }


# The description completes the sentence "'name' must be …, not …". The core checks what depends on its state, and the
# ranges of what configuration files and the command line can set, too.
Text = Annotated[str, Meta(min_length=1, description="a non-empty string")]
Switch = Annotated[bool, Meta(description="true or false")]
Bytes = Annotated[int, Meta(description="a whole number of bytes, 0 for no limit")]
Size = Annotated[int, Meta(ge=0, le=LARGEST, description="a whole number of bytes")]
Fraction = Annotated[float, Meta(description="a fraction of a GPU's time, from 0 (none) to 1")]
Weight = Annotated[float, Meta(description="a number above 0")]
Seconds = Annotated[float, Meta(ge=0, le=LATEST, description="a number of seconds, 0 or more")]
Wall = Annotated[float, Meta(ge=0, le=LATEST_WALL, description="seconds since 1970")]
Server = Annotated[
    str,
    Meta(max_length=LONGEST_SERVER, description=f"a name of at most {LONGEST_SERVER} characters"),
]


class Group(Body):
    group: Text


class Explain(Body):
    group: Text | None = None
    #: Whether sentences come with the codes.
    text: Switch = False


class When(Body):
    group: Text | None = None
    #: For a notebook that is not there yet: its size and class, and a GPU.
    bytes: Size | None = None
    #: The default is the class that a new notebook has.
    priority: Annotated[
        ev.Class | None, Meta(description=f"one of {', '.join(get_args(ev.Class))}")
    ] = None
    gpu: Text | None = None


class Login(Body):
    token: Text


class Ticket(Group):
    server: Server = ""


class Tickets(Body):
    groups: Annotated[list[str], Meta(description="a list of kernel IDs")]
    server: Server = ""


class Status(Body):
    timeline: Annotated[int | None, Meta(description="a version number")] = None
    #: Whether sentences come with the codes.
    text: Switch = False


class History(Body):
    since: Annotated[int, Meta(description="a sequence number")] = 0


class Set(Body):
    quantum: Annotated[
        ev.Quantum | None, Meta(description="'auto' or a number of seconds above 0")
    ] = None
    anti_thrash: Annotated[ev.AntiThrash | None, Meta(description="auto, on or off")] = None
    policy: Text | None = None
    #: Null: off.
    hibernate_after: Annotated[
        float | UnsetType | None, Meta(description="a number of seconds, 0 (off) or more")
    ] = UNSET
    prefetch: Switch | None = None


class Adjust(Group):
    priority: Annotated[
        ev.Priority | None, Meta(description="auto, interactive, agent or background")
    ] = None
    keep: Switch | None = None
    frozen: Switch | None = None
    memory: Bytes | None = None
    request: Fraction | None = None
    limit: Fraction | None = None
    weight: Weight | None = None
    exclusive: Switch | None = None
    later: Switch = False


class Entitle(Body):
    whose: Text
    request: Fraction | None = None
    limit: Fraction | None = None
    weight: Weight | None = None
    memory: Bytes | None = None
    gpus: Annotated[int | None, Meta(description="a whole number of GPUs, 0 for no limit")] = None
    host: Bytes | None = None
    members: Annotated[list[Text] | None, Meta(description="a list of users")] = None


class ClaimUid(Body):
    #: As Kubernetes states it.
    uid: Text


class PrepareClaim(ClaimUid):
    token: Text
    user: Text
    teams: Annotated[list[Text], Meta(description="a list of teams")] = []
    priority: Annotated[
        ev.Priority | None, Meta(description="auto, interactive, agent or background")
    ] = None
    request: Fraction | None = None
    limit: Fraction | None = None
    weight: Weight | None = None
    memory: Bytes | None = None
    host: Bytes | None = None


class Focus(Body):
    user: Text | None = None
    group: Annotated[str, Meta(description="the ID of the notebook in focus, or empty")] = ""


class Hint(Group):
    kind: Annotated[ev.HintKind, Meta(description="focus, typing, queued or ready")]


class Record(Body):
    file: Annotated[str, Meta(pattern="^/", description="an absolute path")]
    seconds: Seconds | None = None


class Recordings(Body):
    stop: Switch | None = None


class Cell(Group):
    phase: Annotated[ev.Phase, Meta(description="'begin' or 'end'")]
    msg_id: Text
    at: Annotated[float, Meta(ge=0, le=LATEST, description="seconds on CLOCK_MONOTONIC")]
    #: Whether an agent began it; left out: not known.
    agent: Switch | None = None


class Queued(Group):
    count: Annotated[
        int, Meta(ge=0, le=MOST_CELLS, description=f"a whole number from 0 to {MOST_CELLS}")
    ]


class Name(Group):
    name: Text


class Notice(Group):
    code: Text
    params: Annotated[dict[str, Any], Meta(description="an object")] = {}


class Drain(Body):
    gpu: Annotated[str, Meta(description="a UUID or an index")]
    on: Switch = True


class Hold(Group):
    on: Switch = True


class Reserve(Group):
    on: Switch = True


class Maintenance(Body):
    text: Annotated[
        str,
        Meta(
            max_length=LONGEST_TEXT,
            description=f"a string of at most {LONGEST_TEXT} characters, empty for no message",
        ),
    ] = ""


class Audit(Body):
    since: Wall | None = None


class Report(Audit):
    until: Wall | None = None
    #: What rows are divided by.
    by: Annotated[
        list[Literal["user", "team", "notebook", "day"]],
        Meta(max_length=4, description="a list of user, team, notebook, day"),
    ] = []
    #: Whose notebooks rows are of.
    user: Text | None = None


#: By operation; operations that are missing have no parameters.
BODIES: dict[str, type[Body]] = {
    "login": Login,
    "claim": Group,
    "ticket": Ticket,
    "tickets": Tickets,
    "revoke": Group,
    "status": Status,
    "history": History,
    "set": Set,
    "release": Group,
    "evict": Group,
    "hibernate": Group,
    "wake": Group,
    "adjust": Adjust,
    "entitle": Entitle,
    "prepare_claim": PrepareClaim,
    "unprepare_claim": ClaimUid,
    "present_claim": Login,
    "focus": Focus,
    "hint": Hint,
    "explain": Explain,
    "when": When,
    "record": Record,
    "recordings": Recordings,
    "cancel": Group,
    "cell": Cell,
    "queued": Queued,
    "name": Name,
    "notice": Notice,
    "drain": Drain,
    "hold": Hold,
    "reserve": Reserve,
    "reservation": Group,
    "maintenance": Maintenance,
    "audit": Audit,
    "report": Report,
}


def read(operation: str, request: Mapping[str, Any]) -> Any:
    """Return the parameters of a request, as an object of the class that ``BODIES`` names.

    Raises
    ------
    RequestError
        A parameter is missing or not valid.
    """
    kind = BODIES.get(operation, Body)
    try:
        return convert(request, kind)
    except ValidationError:
        # Of what msgspec writes, only that something is wrong: its sentences are about types.
        for field in fields(kind):
            value = request.get(field.name)
            if (field.required or field.name in request) and not _is_valid(value, field.type):
                words = _description(field.type)
                raise RequestError(f"{field.name!r} must be {words}, not {value!r}") from None
        raise


def _is_valid(value: Any, kind: Any) -> bool:
    try:
        convert(value, kind)
    except ValidationError:
        return False
    return True


def _description(kind: Any) -> str:
    """Return the description of an annotated type, alone or in a union."""
    parts = (kind, *get_args(kind))
    found = (meta.description for part in parts for meta in getattr(part, "__metadata__", ()))
    return str(next(words for words in found if words))
