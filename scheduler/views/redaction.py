# SPDX-License-Identifier: BSD-3-Clause
"""What users see of each other: sizes, states, places and reasons; not who somebody is, nor what they run.

What is not known to be harmless is not shown: of whatever is told about others, numbers stay, and of the texts those
alone that are listed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

#: In the place of another's name, notebook or program.
OTHER = "another user"
#: What the ids of others' groups begin with.
HIDDEN = "hidden-"
#: No user's name.
STRANGER = "\0"
#: So many groups of others are told apart at once.
MOST = 20_000

#: Texts about others that say nothing of who they are, by their keys: words out of lists of ours, and GPUs.
_PLAIN = frozenset(
    {
        "anti_thrash",
        "backend",
        "cause",
        "class",
        "code",
        "gpu",
        "instead",
        "kind",
        "phase",
        "policy",
        "priority",
        "quantum",
        "state",
        "status",
        "step",
        "uuid",
    }
)
#: Parameters that name a group, and those that have its name.
_GROUPS = {"holder": "holder_name", "ahead": "ahead_name"}
#: Parameters that list groups, and those that have their names, in the same order.
_LISTS = {"victim_ids": "victims", "groups": "names"}
#: Parameters that say whose a share is.
_CLAIMS = ("whose", "their_whose")
#: Of these notices and events about nobody, the text is for everybody.
_PUBLIC = {"maintenance": frozenset({"text"})}
#: What of a status is for everybody.
_OPEN = ("settings", "maintenance", "hibernation")


class Disguise:
    """Gives the groups of others ids that say nothing, and always the same ones."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._groups: dict[int, str] = {}
        self._last = 0

    def hide(self, group: str) -> str:
        """Return the id for others of a group."""
        number = self._numbers.get(group)
        if number is None:
            self._last += 1
            number = self._numbers[group] = self._last
            self._groups[number] = group
            if len(self._numbers) > MOST:
                del self._groups[self._numbers.popitem(last=False)[1]]
        else:
            self._numbers.move_to_end(group)
        return f"{HIDDEN}{number}"

    def find(self, hidden: str) -> str | None:
        """Return the group that has such an id, or None."""
        number = hidden.removeprefix(HIDDEN)
        if number == hidden or not (number.isascii() and number.isdigit()):
            return None
        return self._groups.get(int(number))


class View:
    """What one user sees.

    Parameters
    ----------
    user
        Whose view it is.
    teams
        Teams of theirs, as ``team:NAME``.
    owner
        Returns whose a group is, or None.
    disguise
        For the ids of others' groups.
    """

    def __init__(
        self,
        user: str,
        teams: frozenset[str],
        owner: Callable[[str], str | None],
        disguise: Disguise,
    ) -> None:
        self.user = user
        self._teams = teams
        self._owner = owner
        self._disguise = disguise

    def __eq__(self, other: object) -> bool:
        """Whether both see the same."""
        return isinstance(other, View) and self.user == other.user and self._teams == other._teams

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((self.user, self._teams))

    def group(self, group: str) -> str:
        """Return a group's id."""
        return group if not group or self._owner(group) == self.user else self.hide(group)

    def hide(self, group: str) -> str:
        """Return the id of another's group."""
        return self._disguise.hide(group)

    def find(self, hidden: str) -> str | None:
        """Return the group that is shown with such an id, or None."""
        return self._disguise.find(hidden)

    def claim(self, whose: object) -> object:
        """Return whose a share is: ``user:NAME``, ``team:NAME`` or ``group:ID``."""
        kind, _, name = str(whose).partition(":")
        if kind == "group":
            return f"group:{self.group(name)}"
        if not isinstance(whose, str) or whose == f"user:{self.user}" or whose in self._teams:
            return whose
        return f"{kind}:{OTHER}" if kind in ("user", "team") else ""

    # --- Answers ------------------------------------------------------------------------------

    def status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Cut a status; its timeline is cut where it is made."""
        return {
            **_plain(status),
            **{key: status[key] for key in _OPEN if key in status},
            "gpus": [
                {**_plain(gpu), "name": gpu["name"], "uuid": gpu["uuid"]} for gpu in status["gpus"]
            ],
            "groups": [self._entry(group) for group in status["groups"]],
            "notices": [
                {**self._notice(notice["group"], notice), "time": notice["time"]}
                for notice in status["notices"]
            ],
        }

    def event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Cut an event of the history."""
        group, user = event["group"], event["user"]
        fields = {k: v for k, v in event.items() if k not in _EVENT}
        if event["kind"] == "notice":
            fields = self._notice(group, fields, own=user == self.user)
            del fields["group"]
        elif event["kind"] == "entitle":
            members = [self._member(name) for name in fields["members"]]
            fields = {**_plain(fields), "whose": self.claim(fields["whose"]), "members": members}
        else:
            reason = fields.pop("reason", None)
            if user != self.user or not group:
                fields = _plain(fields) | _public("" if group else event["kind"], fields)
            if reason is not None:
                fields["reason"] = self._cut_code(reason)
        who = {"group": group, "name": event["name"], "user": user}
        if group and user != self.user:
            who = {"group": self.hide(group), "name": OTHER, "user": OTHER}
        return {key: event[key] for key in ("sequence", "time", "kind")} | who | fields

    def concerned(self, event: Mapping[str, Any]) -> set[str] | None:
        """Return the users for whom an event is not what it is for all others; None: each may see it their own way.

        Those who see everything do not count.
        """
        params = (event.get("reason") or {}).get("params", {})
        if event["kind"] == "entitle" or not params.keys().isdisjoint(_CLAIMS):
            return None
        groups = [params[key] for key, name in _GROUPS.items() if name in params]
        for key in _LISTS:
            groups += params.get(key, ())
        return {event["user"], *(self._owner(group) or "" for group in groups)}

    def explanation(self, explanation: Mapping[str, Any]) -> dict[str, Any]:
        """Cut an explanation."""
        return {**explanation, "groups": [self._explained(one) for one in explanation["groups"]]}

    def shares(self, shares: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Cut what users and teams are entitled to, and have had."""
        found: dict[str, Any] = {}
        for whose, share in shares.items():
            shown = self.claim(whose)
            if shown != whose and whose != "user:*":
                kind = whose.partition(":")[0]
                found[f"{kind}:{self.hide(whose)}"] = {**_plain(share), "members": []}
            else:
                members = [self._member(name) for name in share.get("members", ())]
                found[whose] = {**share, "members": members}
        return found

    # --- Their parts --------------------------------------------------------------------------

    def _entry(self, group: Mapping[str, Any]) -> dict[str, Any]:
        reason = None if group["reason"] is None else self._cut_code(group["reason"])
        if group["user"] == self.user:
            own = {**group, "reason": reason}
            # Sentences name others; they are made after this (`words`).
            own.pop("words", None)
            return own
        who = {"id": self.hide(group["id"]), "name": OTHER, "user": OTHER}
        return {**_plain(group), **who, "reason": reason}

    def _notice(
        self, group: str, notice: Mapping[str, Any], *, own: bool | None = None
    ) -> dict[str, Any]:
        if own is None:
            own = bool(group) and self._owner(group) == self.user
        code, params = notice["code"], notice["params"]
        if group and own:
            return {"group": group, "code": code, "params": params}
        if group:
            return {"group": self.hide(group), "code": _known(code), "params": _plain(params)}
        return {"group": "", "code": code, "params": _plain(params) | _public(code, params)}

    def _cut_code(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Cut a code with parameters."""
        params = message["params"]
        cut = _plain(params)
        for key, name in _GROUPS.items():
            if name not in params:
                continue
            own = self._owner(params[key]) == self.user
            cut[key] = self.group(params[key])
            cut[name] = params[name] if own else OTHER
            if "kernel" in params:
                cut["kernel"] = params["kernel"] if own else None
        for key, name in _LISTS.items():
            if key not in params:
                continue
            groups = params[key]
            cut[key] = [self.group(group) for group in groups]
            cut[name] = [
                its if self._owner(group) == self.user else OTHER
                for group, its in zip(groups, params[name], strict=True)
            ]
        for key in _CLAIMS:
            if key in params:
                cut[key] = self.claim(params[key])
        return {"code": message["code"], "params": cut}

    def _explained(self, one: Mapping[str, Any]) -> dict[str, Any]:
        before = [{**self._who(each), **self._cut_code(each)} for each in one["before"]]
        cut = {**_plain(one), **self._who(one), "before": before}
        for key in ("why_class", "pace", "reason", "next"):
            cut[key] = None if one[key] is None else self._cut_code(one[key])
        if one["next"] is not None and "ahead" in one["next"]["params"]:
            # It is the first of those before it.
            cut["next"]["params"]["ahead"] = before[0]["name"]
        return cut

    def _who(self, one: Mapping[str, Any]) -> dict[str, Any]:
        who = {key: one[key] for key in ("group", "name", "user", "class")}
        if one["user"] == self.user:
            return who
        return {**who, "group": self.hide(one["group"]), "name": OTHER, "user": OTHER}

    def _member(self, name: str) -> str:
        return name if name == self.user else OTHER


def _public(kind: str, told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: told[key] for key in _PUBLIC.get(kind, ()) if key in told}


class EventForMany:
    """An event for many: encoded once for all to whom it says the same.

    Parameters
    ----------
    event
        As administrators see it.
    stranger
        The view of one whom nothing concerns.
    encode
        Makes bytes of it.
    """

    def __init__(
        self,
        event: Mapping[str, Any],
        stranger: View,
        encode: Callable[[Mapping[str, Any]], bytes],
    ) -> None:
        self._event = event
        self._stranger = stranger
        self._encode = encode
        self._concerned = stranger.concerned(event)
        self._texts: dict[View | None, bytes] = {}

    def to(self, view: View | None) -> bytes:
        """Return what somebody is told."""
        if view is not None and self._concerned is not None and view.user not in self._concerned:
            view = self._stranger
        text = self._texts.get(view)
        if text is None:
            event = self._event if view is None else view.event(self._event)
            text = self._texts[view] = self._encode(event)
        return text


_EVENT = frozenset({"sequence", "time", "kind", "group", "name", "user"})


def _known(code: str) -> str:
    """Return a notice's code, if it is one of ours: programs may give notices codes of their own."""
    return code if code in _NOTICES else ""


#: Codes of notices about a group that others may see.
_NOTICES = frozenset({"stuck", "hibernation_stuck", "started_without_interposer", "underreported"})


def _plain(value: Any, key: str = "") -> Any:
    """Return what is told about somebody without what says who it is: other texts are empty, process ids 0."""
    if isinstance(value, Mapping):
        return {name: _plain(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, key) for each in value]
    if isinstance(value, str):
        return value if key in _PLAIN else ""
    return 0 if key == "pid" and value is not None else value
