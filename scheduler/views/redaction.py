# SPDX-License-Identifier: BSD-3-Clause
"""Limits what users see of each other: sizes, states, places and reasons, but not names or programs.

Only what is known to be harmless is shown. Of everything about other users, numbers stay, and only the texts that are
listed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

#: Replaces another user's name, notebook or program.
OTHER = "another user"
#: The prefix of the ids that replace those of other users' groups.
HIDDEN = "hidden-"
#: A name that no user has.
STRANGER = "\0"
#: The number of groups with such ids; above it, the id that was not used for longest is dropped.
MOST = 20_000

#: Texts that do not identify a user, by their keys: words from fixed lists, and GPUs.
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
        "result",
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
#: Parameters that name the user, team or group of a share.
_CLAIMS = ("whose", "their_whose")
#: Notices and events that concern no user, with the parameters that all users see.
_PUBLIC = {"maintenance": frozenset({"text"})}
#: The parts of a status that all users see.
_OPEN = ("settings", "maintenance", "hibernation")


class Pseudonyms:
    """Replaces the ids of other users' groups by ids without a meaning that stay the same."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._groups: dict[int, str] = {}
        self._last = 0

    def hide(self, group: str) -> str:
        """Return the id of a group for other users."""
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
        """Return the group with such an id, or None."""
        number = hidden.removeprefix(HIDDEN)
        if number == hidden or not (number.isascii() and number.isdigit()):
            return None
        return self._groups.get(int(number))


class View:
    """Reduces answers to what one user may see.

    Parameters
    ----------
    user
        The user.
    teams
        The user's teams, as ``team:NAME``.
    owner
        Returns the owner of a group, or None.
    pseudonyms
        Makes the ids of other users' groups.
    """

    def __init__(
        self,
        user: str,
        teams: frozenset[str],
        owner: Callable[[str], str | None],
        pseudonyms: Pseudonyms,
    ) -> None:
        self.user = user
        self._teams = teams
        self._owner = owner
        self._pseudonyms = pseudonyms

    def __eq__(self, other: object) -> bool:
        """Whether both users see the same answers."""
        return isinstance(other, View) and self.user == other.user and self._teams == other._teams

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((self.user, self._teams))

    def group(self, group: str) -> str:
        """Return the id of a group as the user sees it."""
        return group if not group or self._owner(group) == self.user else self.hide(group)

    def hide(self, group: str) -> str:
        """Return the id that replaces that of another user's group."""
        return self._pseudonyms.hide(group)

    def find(self, hidden: str) -> str | None:
        """Return the group that is shown with such an id, or None."""
        return self._pseudonyms.find(hidden)

    def claim(self, whose: object) -> object:
        """Return the name of a share as the user sees it: ``user:NAME``, ``team:NAME`` or ``group:ID``."""
        kind, _, name = str(whose).partition(":")
        if kind == "group":
            return f"group:{self.group(name)}"
        if not isinstance(whose, str) or whose == f"user:{self.user}" or whose in self._teams:
            return whose
        return f"{kind}:{OTHER}" if kind in ("user", "team") else ""

    # --- Answers ------------------------------------------------------------------------------

    def status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce a status. Its timeline is reduced where it is made."""
        return {
            **_plain(status),
            **{key: status[key] for key in _OPEN if key in status},
            **self._host(status),
            "gpus": [
                {**_plain(gpu), "name": gpu["name"], "uuid": gpu["uuid"]} for gpu in status["gpus"]
            ],
            "groups": [self._entry(group) for group in status["groups"]],
            "notices": [
                {**self._notice(notice["group"], notice), "time": notice["time"]}
                for notice in status["notices"]
            ],
        }

    def _host(self, status: Mapping[str, Any]) -> dict[str, Any]:
        if "host" not in status:
            return {}
        # The administrator's folder and its error identify no user, and users need them to know why they wait.
        tier = status["host"].get("disk_tier")
        return {"host": {**_plain(status["host"]), "disk_tier": tier}}

    def hides(self, event: Mapping[str, Any]) -> bool:
        """Whether an event is hidden from the user, because it shows that another user returned to a notebook."""
        return bool(event["kind"] == "prefetch" and event["user"] != self.user)

    def event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce an event of the history."""
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
        """Return the users who see more of an event than all other users; None: each user may see something else.

        Administrators, who see everything, do not count.
        """
        params = (event.get("reason") or {}).get("params", {})
        if event["kind"] == "entitle" or not params.keys().isdisjoint(_CLAIMS):
            return None
        groups = [params[key] for key, name in _GROUPS.items() if name in params]
        for key in _LISTS:
            groups += params.get(key, ())
        return {event["user"], *(self._owner(group) or "" for group in groups)}

    def explanation(self, explanation: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce an explanation."""
        return {**explanation, "groups": [self._explained(one) for one in explanation["groups"]]}

    def when(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce the forecast for one of the user's own groups."""
        return {**answer, "reason": self._cut_code(answer["reason"])}

    def shares(self, shares: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Reduce the entitlements and the usage of users and teams."""
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

    # --- Parts of answers --------------------------------------------------------------------------

    def _entry(self, group: Mapping[str, Any]) -> dict[str, Any]:
        reason = None if group["reason"] is None else self._cut_code(group["reason"])
        if group["user"] == self.user:
            own = {**group, "reason": reason}
            # Sentences name other users. They are made again from the reduced codes (`words`).
            own.pop("words", None)
            return own
        who = {"id": self.hide(group["id"]), "name": OTHER, "user": OTHER}
        return {**_plain(group), **who, **_unforeseen(group), "reason": reason}

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
        """Reduce a code with its parameters."""
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
        cut.update({"prefetch": one["prefetch"]} if one["user"] == self.user else _unforeseen(one))
        # It says what the notebooks of one user have in common.
        cut["moved"] = one["moved"] if one["user"] == self.user else None
        if one["next"] is not None and "ahead" in one["next"]["params"]:
            # It is the first of the groups before this one.
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


class BroadcastEvent:
    """An event for many subscribers, encoded once for all that see the same of it.

    Parameters
    ----------
    event
        The event as administrators see it.
    stranger
        The view of a user whom no event concerns.
    encode
        Encodes an event.
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
        """Return the encoded event for a view; None: for an administrator. It is empty if the user must not see it."""
        if view is not None and view.hides(self._event):
            return b""
        if view is not None and self._concerned is not None and view.user not in self._concerned:
            view = self._stranger
        text = self._texts.get(view)
        if text is None:
            event = self._event if view is None else view.event(self._event)
            text = self._texts[view] = self._encode(event)
        return text


_EVENT = frozenset({"sequence", "time", "kind", "group", "name", "user"})


def _unforeseen(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of another user's group without its prefetch.

    A prefetch would reveal what a user does in a notebook without using the GPU.
    """
    state = group["state"]
    return {"state": "idle" if state == "prefetching" else state, "prefetch": None}


def _known(code: str) -> str:
    """Return a notice's code if the scheduler defines it, because programs may invent codes."""
    return code if code in _NOTICES else ""


#: Codes of notices about a group that other users may see.
_NOTICES = frozenset({"stuck", "hibernation_stuck", "started_without_interposer", "underreported"})


def _plain(value: Any, key: str = "") -> Any:
    """Return data about another user without what identifies them: other texts are empty, process ids are 0."""
    if isinstance(value, Mapping):
        return {name: _plain(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, key) for each in value]
    if isinstance(value, str):
        return value if key in _PLAIN else ""
    return 0 if key == "pid" and value is not None else value
