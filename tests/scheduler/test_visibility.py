# SPDX-License-Identifier: BSD-3-Clause
"""What users see of each other, in any state that the core gets into.

The world of ``world/`` drives a second core, that of a server, with the same events, in which all that
belongs to a user has that user's mark: names, ids of groups, cells, functions on the GPU, teams, notices. Whatever a
server answers to one user, or pushes, has no mark of another's in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.node.principals import Identity, Principal
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.server import history, requests, server
from jupyter_gpushare.scheduler.server.options import Options
from jupyter_gpushare.scheduler.server.server import Server
from jupyter_gpushare.scheduler.views.redaction import (
    HIDDEN,
    OTHER,
    BroadcastEvent,
    Pseudonyms,
    View,
)
from jupyter_gpushare.scheduler.views.words import answers
from tests.scheduler.world.constants import GPUS, GROUPS, PATIENCE, SPEED, TOTAL, USERS
from tests.scheduler.world.world import World
from tests.support.properties import examples

MARKS = {user: f"Q{user.upper()}Q" for user in ("ada", "ben", "cy")}
#: What becomes of a word of the world's; in the same order, since ids break ties.
WORDS = {
    **{user: f"{user}-{mark}" for user, mark in MARKS.items()},
    **{group: f"{group}-{MARKS[user]}" for group, user in USERS.items()},
    **{gpu: f"GPU-{UUID(int=number + 1)}" for number, gpu in enumerate(GPUS)},
    **{f"user:{user}": f"user:{user}-{mark}" for user, mark in MARKS.items()},
}


def marked(value: Any) -> Any:
    """An event of the world's, with marks."""
    if isinstance(value, ev.Cell):
        value = replace(value, msg_id=f"{MARKS[USERS[value.group]]}-{value.msg_id}")
    elif isinstance(value, ev.Attach):
        value = replace(value, name=f"{MARKS[value.user]}.ipynb", pid=700_000_000 + value.client)
    if isinstance(value, Struct):
        return replace(value, **{f.name: marked(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(marked(item) for item in value)
    return WORDS.get(value, value) if isinstance(value, str) else value


class Peer:
    """Stands for a connection."""

    def __init__(self, principal: Principal, number: int = 0, end: socket.socket | None = None):
        self.principal = principal
        self.number = number
        self.uid = principal.uid
        self.process, self.is_there = 0, False
        self.why = ""
        self.attached = False
        self.written = b""
        self.transport = SimpleNamespace(get_extra_info=lambda name: end, close=lambda: None)

    def write(self, data: bytes) -> None:
        self.written += data

    def write_with(self, data: bytes, descriptor: int) -> bool:
        return False


ADMIN: Any = Peer(Principal("root", 0, admin=True))


class Watched(World):
    """The world, and a server that is shown to several users."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = socket.socketpair()
        self.patches = contextlib.ExitStack()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (server, history, requests):
            self.patches.enter_context(mock.patch.object(module, "time", clock))
        self.loop = asyncio.new_event_loop()
        self.patches.callback(self.loop.close)
        self.steps = 0
        #: The world's core that is followed.
        self.mirrored: Core | None = None

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.look()
            self.check_that_it_could_fail()
        self.patches.close()
        for end in self.ends:
            end.close()

    def begin(self) -> None:
        """Begin with a core like the world's."""
        core = self.make_core({"bandwidth": SPEED, **PATIENCE, **self.settings})
        self.server = self.loop.run_until_complete(self.make(core))
        self.clients: dict[int, Peer] = {}
        self.pids: dict[str, set[int]] = {user: set() for user in MARKS}
        self.viewers = {user: Peer(Principal(WORDS[user], 1)) for user in MARKS}
        self.server.history.subscribers.update(self.viewers.values())

    async def make(self, core: Core) -> Server:
        made = Server(core, Devices(None), Options(Path("/s"), identity=Identity(node=True)))
        # What the driver does, the world says.
        made.hibernations = mock.Mock(**{"may_park.return_value": True})
        return made

    def feed(self, event: ev.Event) -> None:
        if self.mirrored is not self.core:
            self.mirrored = self.core
            self.begin()
        self.mirror(marked(event))
        super().feed(event)
        assert granted(self.server.core) == granted(self.core), "the marks change what is decided"

    def mirror(self, event: ev.Event) -> None:
        match event:
            case ev.Attach():
                peer = Peer(Principal(event.user, 1), event.client, self.ends[0])
                self.clients[event.client] = peer
                user = next(user for user in MARKS if WORDS[user] == event.user)
                self.pids[user].add(event.pid)
                self.server.identities.claim(peer.principal, event.group)
                self.server.attach(peer, event)  # type: ignore[arg-type]
            case ev.Detach():
                self.server.remove(self.clients.pop(event.client))  # type: ignore[arg-type]
            case ev.Device():
                self.server._add_device(event)
            case ev.Entitle():
                stated = {"members": list(event.members), **asdict(event.entitlement)}
                self.answer(ADMIN, "entitle", whose=event.whose, **stated)
            case _:
                self.server.handle(event)

    # --- What only this world has -----------------------------------------------------------------

    @precondition(lambda self: any(g.yielding for g in self.core.groups.values()))
    @rule(data=st.data())
    def run_a_kernel_that_does_not_end(self, data: Any) -> None:
        owing = [p for p in self.processes.values() if self.core.groups[p.group].yielding]
        process = self.pick(data, owing)
        lease = self.core.clients[process.number].lease
        if lease is not None:
            kernel = MARKS[USERS[process.group]] + "_kernel"
            self.feed(ev.Stuck(process.number, lease, kernel, self.now - 1.0))

    @rule(group=st.sampled_from(GROUPS), code=st.sampled_from(["stuck", "mark"]))
    def notice(self, group: str, code: str) -> None:
        mark = MARKS[USERS[group]]
        params = {"file": f"/home/{mark}/a.py", "list": [mark, {"code": "x", "pid": 7}]}
        self.feed(ev.Notice(group, mark if code == "mark" else code, params))

    @rule(user=st.sampled_from(sorted(MARKS)))
    def a_team_of_ones_own(self, user: str) -> None:
        team = f"team:{MARKS[user]}"
        self.feed(ev.Entitle(team, ev.Entitlement(limit=0.5, memory=900 << 20), (user,)))

    @rule(user=st.sampled_from(sorted(MARKS)), gpus=st.sampled_from([0, 1]))
    def a_quota(self, user: str, gpus: int) -> None:
        self.feed(ev.Entitle(f"user:{user}", ev.Entitlement(gpus=gpus)))

    # --- Viewers --------------------------------------------------------------------------------

    @invariant()
    def users_see_no_marks_of_others(self) -> None:
        if hasattr(self, "server"):
            self.steps += 1
            # Each answer comes out of the whole history: every few steps is often enough.
            if self.steps % 4 == 0:
                self.look()

    def look(self) -> None:
        for user, viewer in self.viewers.items():
            status = self.answer(viewer, "status", timeline=0)["status"]
            history = self.answer(viewer, "history", since=0)
            answers = [status, history, self.answer(viewer, "shares")]
            answers.append(self.answer(viewer, "status", text=True))
            answers.append(self.answer(viewer, "explain", text=True))
            for group in status["groups"]:
                answers.append(self.answer(viewer, "explain", group=group["id"], text=True))
                if group["user"] == status["viewer"]["user"]:
                    answers.append(self.answer(viewer, "when", group=group["id"]))
            answers.append(self.answer(viewer, "when", bytes=TOTAL // 2))
            reader = protocol.FrameReader(from_scheduler=True)
            pushed = [protocol.decode_json(frame.body) for frame in reader.feed(viewer.written)]
            viewer.written = b""
            # What is encoded once for many is the same.
            assert pushed == history["events"][len(history["events"]) - len(pushed) :]
            answers += pushed
            ahead = [event["user"] for event in history["events"] if event["kind"] == "prefetch"]
            assert set(ahead) <= {WORDS[user]}
            text = json.dumps(answers)
            found = numbers(text)
            for other in MARKS.keys() - {user}:
                assert MARKS[other] not in text, (
                    f"{user} sees {other}: {around(text, MARKS[other])}"
                )
                assert not self.pids[other].intersection(found), "a process of another's"
            self.check_own(user, status)

    def check_own(self, user: str, status: dict[str, Any]) -> None:
        """What is one's own is all there, and what is said of others can be found."""
        whole = self.answer(ADMIN, "status")["status"]
        assert len(status["groups"]) == len(whole["groups"])
        ids = {group["id"] for group in status["groups"]}
        for shown, full in zip(status["groups"], whole["groups"], strict=True):
            assert shown.keys() == full.keys()
            reasons = shown.pop("reason"), full.pop("reason")
            if full["user"] == WORDS[user]:
                assert shown == full
            else:
                assert shown["id"].startswith(HIDDEN)
                assert (shown["name"], shown["user"]) == (OTHER, OTHER)
                assert shown["gpus"] == full["gpus"]
                assert shown["preferences"] == full["preferences"]
                assert (shown["prefetch"], shown["state"] != "prefetching") == (None, True)
            assert (reasons[0] is None) == (reasons[1] is None)
            if reasons[0] is not None:
                assert reasons[0]["code"] == reasons[1]["code"]
                assert reasons[0]["params"].keys() == reasons[1]["params"].keys()
                named = {reasons[0]["params"].get(key, "") for key in ("holder", "ahead")}
                assert named - {""} <= ids

    def check_that_it_could_fail(self) -> None:
        """A reader that may see everything does see the marks."""
        reader = Peer(Principal("hub", 1, reader=True))
        text = json.dumps([self.answer(reader, op) for op in ("status", "history", "explain")])
        for group in self.answer(reader, "status", text=True)["status"]["groups"]:
            if group["reason"] is not None and group["reason"]["code"] == "behind":
                # Sentences have the marks, too.
                assert group["reason"]["params"]["ahead_name"] in group["words"]["why"]
        for group in self.server.core.groups.values():
            assert group.id in text
            assert group.name in text

    def answer(self, peer: Peer, op: str, **params: Any) -> dict[str, Any]:
        body = json.dumps({"op": op, "protocol": protocol.CONTROL_VERSION, **params}).encode()
        reply = self.server._requests.answer(peer, body)  # type: ignore[arg-type]
        assert isinstance(reply, bytes)
        (frame,) = protocol.FrameReader(from_scheduler=True).feed(reply)
        answer = protocol.decode_json(frame.body)
        assert answer["ok"], answer
        return answer


def granted(core: Core) -> tuple[dict[int, int | None], dict[int, int]]:
    """The lease of each client, and which client is told to evict, by the number of the eviction."""
    leases = {number: client.lease for number, client in core.clients.items()}
    return leases, {n: found[0].client.number for n, found in core.model.evictions.items()}


def numbers(text: str) -> set[int]:
    """All whole numbers that are values in answers as JSON."""
    return set(map(int, re.findall(r"(?:[:,] |\[)(\d+)(?=[],}])", text)))


def around(text: str, mark: str) -> str:
    at = text.index(mark)
    return text[max(0, at - 300) : at + 100]


TestWatched = Watched.TestCase
TestWatched.settings = settings(
    max_examples=examples(25),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# --- Single rules ---------------------------------------------------------------------------------


@pytest.fixture
def view() -> View:
    owners = {"mine": "ada", "theirs": "ben"}
    return View("ada", frozenset({"team:course"}), owners.get, Pseudonyms())


def test_an_id_reveals_nothing_and_stays_the_same(view: View) -> None:
    shown = view.group("theirs")
    assert shown.startswith(HIDDEN)
    assert view.group("theirs") == shown != view.group("another")
    assert view.find(shown) == "theirs"
    assert view.group("mine") == "mine"
    assert view.find("mine") is None
    assert view.find(f"{HIDDEN}٣") is None


def test_unlisted_fields_are_not_shown(view: View) -> None:
    event = {
        "sequence": 1, "time": 2.0, "kind": "of_a_later_release", "group": "theirs",
        "name": "secret.ipynb", "user": "ben", "bytes": 5, "path": "secret", "pid": 77,
        "more": [{"title": "secret"}], "gpu": "GPU-1", "flag": True,
    }  # fmt: skip
    shown = view.event(event)
    assert "secret" not in json.dumps(shown)
    assert (shown["bytes"], shown["gpu"], shown["flag"], shown["pid"]) == (5, "GPU-1", True, 0)
    assert view.event({**event, "user": "ada", "group": "mine"}) == {
        **event,
        "user": "ada",
        "group": "mine",
    }


def test_all_users_see_why_the_disk_has_failed(view: View) -> None:
    tier = {"folder": "/disk", "used": 5, "fault": "No space left on device"}
    status = {"gpus": [], "groups": [], "notices": [], "host": {"budget": 7, "disk_tier": tier}}
    assert view.status(status)["host"] == status["host"]


def test_others_do_not_see_that_a_user_comes_back(view: View) -> None:
    told = {"hint": "typing", "likelihood": 0.6, "bytes": 0, "seconds": 0.0, "result": "begun"}
    event = {
        "sequence": 1, "time": 2.0, "kind": "prefetch", "group": "theirs", "name": "b.ipynb",
        "user": "ben", **told,
    }  # fmt: skip
    own = {**event, "group": "mine", "user": "ada"}
    assert (view.hides(event), view.hides(own)) == (True, False)
    broadcast = BroadcastEvent(event, view, lambda shown: json.dumps(shown).encode())
    assert broadcast.to(view) == b""
    assert json.loads(broadcast.to(None)) == event

    def shown(user: str) -> dict[str, Any]:
        group = {
            "id": "g", "name": "n", "user": user, "state": "prefetching", "reason": None,
            "prefetch": {"hint": "typing", "likelihood": 0.6, "stage": "restoring", "since": 1.0},
        }  # fmt: skip
        found: dict[str, Any] = view.status({"gpus": [], "groups": [group], "notices": []})
        return dict(found["groups"][0])

    assert shown("ada")["state"] == "prefetching"
    assert (shown("ben")["state"], shown("ben")["prefetch"]) == ("idle", None)


def test_only_ones_own_entitlements_have_a_name(view: View) -> None:
    shares = {
        "user:ada": {"request": 0.5, "members": []},
        "user:ben": {"request": 0.25, "members": []},
        "user:*": {"limit": 0.5, "members": []},
        "team:course": {"weight": 2.0, "members": ["ada", "ben"]},
        "team:staff": {"weight": 4.0, "members": ["ben"]},
    }
    shown = view.shares(shares)
    hidden = {key: share for key, share in shown.items() if HIDDEN in key}
    assert "ben" not in json.dumps(shown)
    assert "staff" not in json.dumps(shown)
    assert shown["team:course"]["members"] == ["ada", OTHER]
    assert shown["user:*"] == shares["user:*"]
    assert sorted(key.partition(":")[0] for key in hidden) == ["team", "user"]
    assert [share["members"] for share in hidden.values()] == [[], []]


def test_the_holder_of_a_limit_is_shown_for_ones_own_groups(view: View) -> None:
    def limited(whose: str) -> Any:
        reason = {"code": "limited", "params": {"whose": whose, "until_in": 1.0}}
        entry = {"id": "mine", "user": "ada", "reason": reason}
        status = {"gpus": [], "notices": [], "groups": [entry]}
        return view.status(status)["groups"][0]["reason"]["params"]["whose"]

    assert limited("user:ada") == "user:ada"
    assert limited("team:course") == "team:course"
    assert limited("team:staff") == f"team:{OTHER}"
    assert limited("user:ben") == f"user:{OTHER}"
    assert limited("group:theirs").startswith(f"group:{HIDDEN}")


def test_sentences_use_only_visible_parameters(view: View) -> None:
    params = {"holder": "theirs", "holder_name": "secret.ipynb", "yields_in": 2.0}
    reason = {"code": "serialised", "params": params}
    entry = {"id": "mine", "name": "a", "user": "ada", "state": "waiting", "reason": reason}
    notice = {"group": "theirs", "code": "stuck", "params": {"name": "secret"}, "time": 1.0}
    settings_ = {
        "policy": "burst",
        "quantum": "auto",
        "anti_thrash": "auto",
        "hibernate_after": None,
    }
    status = {"gpus": [], "settings": settings_, "groups": [entry], "notices": [notice]}
    whole = answers.status(status)
    assert "secret.ipynb's turn ends" in whole["groups"][0]["words"]["why"]
    # Sentences that were made before are not shown.
    cut = view.status(whole)
    assert "secret" not in json.dumps(cut)
    assert "secret" not in json.dumps(answers.status(cut))
    why = f"one notebook at a time (anti-thrash is on); {OTHER}'s turn ends within 2.0 s"
    (shown,) = answers.status(cut)["groups"]
    assert shown["reason"]["text"] == shown["words"]["why"] == why


def test_notices_of_the_scheduler_are_shown_to_all(view: View) -> None:
    def shown(group: str, code: str, params: dict[str, Any]) -> dict[str, Any]:
        notice = {"group": group, "code": code, "params": params, "time": 1.0}
        found: dict[str, Any] = view.status({"gpus": [], "groups": [], "notices": [notice]})
        (cut,) = found["notices"]
        return dict(cut["params"])

    assert shown("", "maintenance", {"text": "at noon"}) == {"text": "at noon"}
    ended = {
        "sequence": 1, "time": 2.0, "kind": "maintenance", "group": "", "name": "", "user": "",
        "text": "at noon",
    }  # fmt: skip
    assert view.event(ended) == ended
    assert shown("theirs", "maintenance", {"text": "secret"}) == {"text": ""}
    failure = {"policy": "mine", "instead": "burst", "error": "KeyError: 'secret'"}
    assert shown("", "policy_failed", failure) == {**failure, "error": ""}
    assert (
        shown("", "recording_ended", {"file": "/var/log/gpushare.rec", "error": None})["file"] == ""
    )
    assert shown("mine", "stuck", {"kernel": "matmul", "pid": 7}) == {"kernel": "matmul", "pid": 7}
    step = {"name": "a", "pid": 7, "step": "restore"}
    assert shown("theirs", "hibernation_stuck", step) == {"name": "", "pid": 0, "step": "restore"}
