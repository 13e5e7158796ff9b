# SPDX-License-Identifier: BSD-3-Clause
"""``%gpushare`` and ``%%gpushare``, in real kernels and IPython shells."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpushare.kernel_provisioner import in_kernel
from jupyter_gpushare.kernel_provisioner.in_kernel import interposer as library
from jupyter_gpushare.kernel_provisioner.in_kernel import verbs
from jupyter_gpushare.kernel_provisioner.in_kernel.cells import Cells
from jupyter_gpushare.kernel_provisioner.in_kernel.interposer import Interposer
from jupyter_gpushare.kernel_provisioner.in_kernel.magics import Magic
from jupyter_gpushare.scheduler.core.model import Preferences
from jupyter_gpushare.scheduler.node.entitlements import parse_size

from .cell_steps import HOLD, SETUP, Ask, begin, group_of
from .conftest import Kernel, Result, eventually, started

USUAL = asdict(Preferences())

#: This kernel's group, and its preferences, as the scheduler has them amid a cell.
GROUP = "get_ipython()._gpushare[0].control('status')['status']['groups'][0]"
PREFERENCES = f"{GROUP}['preferences']"


def displayed(result: Result) -> dict[str, str]:
    """What a cell displayed, beside its value."""
    (found,) = [o["content"]["data"] for o in result.outputs if o["msg_type"] == "display_data"]
    data: dict[str, str] = found
    return data


def repr_of(result: Result) -> str:
    """What a cell's value is as text."""
    return str(result.data()["text/plain"])


class Deaf(Interposer):
    """An interposer whose scheduler does nothing, and which is asked that of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def group(self) -> str:
        return "g"

    def attached(self) -> bool:
        return True

    def out_of_the_way(self) -> str | None:
        return None

    def take_interrupt(self) -> bool:
        return False

    def contended(self) -> int:
        return 0

    def cell_begin(self, msg_id: str) -> None:
        self.asked.append(("begin", {}))

    def cell_end(self, msg_id: str) -> None:
        self.asked.append(("end", {}))

    def control(self, op: str, **params: Any) -> dict[str, Any]:
        self.asked.append((op, params))
        return {}


def exclusive(ask: Ask, kernel: Kernel) -> bool:
    return bool(group_of(ask, kernel)["preferences"]["exclusive"])


# --- Steering -----------------------------------------------------------------------------------------------------


async def test_release_and_evict(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        assert group_of(scheduler, kernel)["gpus"][0]["resident"] >= 1 << 20
        released = displayed(await kernel.execute("%gpushare release"))
        assert released == {
            "text/plain": "This kernel has released the GPU.",
            "text/html": "<p>This kernel has released the GPU.</p>",
        }
        # By its name, which has a space; amid a cell.
        name = group_of(scheduler, kernel)["name"]
        assert " " in name
        evicted = displayed(await kernel.execute(f"%gpushare evict {name}\nx = 1"))
        assert (
            evicted["text/plain"]
            == f"{name} has released the GPU, and its data is being evicted to host memory."
        )
        await eventually(
            lambda: group_of(scheduler, kernel)["gpus"][0]["resident"] == 0, "the memory is out"
        )
        assert (await kernel.execute("work()")).reply["status"] == "ok"
        assert group_of(scheduler, kernel)["gpus"][0]["resident"] >= 1 << 20
        printed = (await kernel.execute("%gpushare release --json")).stream("stdout")
        assert json.loads(printed) == {"group": kernel.manager.kernel_id}
        refused = await kernel.execute("%gpushare release nobody")
        assert "nobody" in refused.stream("stderr")


async def test_a_kernel_hibernates_when_its_cell_is_over(scheduler: Ask) -> None:
    async with started() as kernel, started() as other:
        await kernel.execute(SETUP)
        said = displayed(await kernel.execute("%gpushare hibernate"))["text/plain"]
        assert said == (
            "This kernel will be hibernated as soon as it is idle. Its next cell wakes it."
        )
        await eventually(
            lambda: group_of(scheduler, kernel)["state"] == "hibernated", "it is hibernated"
        )
        # Another's status does not wake it, and says what it is.
        status = repr_of(await other.execute("%gpushare status"))
        assert re.search(r" hibernated .* freed [\d.]+ MiB; wakes in about [\d.]+ s", status)
        name = group_of(scheduler, kernel)["name"]
        woken = displayed(await other.execute(f"%gpushare wake {name}"))["text/plain"]
        assert woken == f"{name} will wake as soon as the GPU has room for it."
        await eventually(lambda: group_of(scheduler, kernel)["state"] == "idle", "it is awake")
        assert (await kernel.execute("work()")).reply["status"] == "ok"
        assert "was hibernated" in repr_of(await kernel.execute("%gpushare history"))


async def test_a_kernel_gets_ready_before_its_next_cell(scheduler: Ask) -> None:
    async with started() as kernel, started() as other:
        await kernel.execute(SETUP)
        name = group_of(scheduler, kernel)["name"]
        await other.execute(f"%gpushare evict {name}")
        await eventually(
            lambda: group_of(scheduler, kernel)["gpus"][0]["resident"] == 0, "the memory is out"
        )
        bursts = group_of(scheduler, kernel)["totals"]["bursts"]
        said = displayed(await other.execute(f"%gpushare ready {name}"))["text/plain"]
        assert said == f"{name} is getting ready: its data is restored as soon as the GPU has room."
        await eventually(
            lambda: group_of(scheduler, kernel)["gpus"][0]["swapped"] == 0, "the memory is back"
        )
        assert group_of(scheduler, kernel)["totals"]["bursts"] == bursts
        said = displayed(await kernel.execute("%gpushare ready"))["text/plain"]
        assert said == "This kernel is ready: all of its memory is on the GPU."
        printed = (await kernel.execute("%gpushare ready --json")).stream("stdout")
        assert json.loads(printed)["group"] == kernel.manager.kernel_id
        assert (await kernel.execute("work()")).reply["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        ("restoring", "getting ready", "plots is getting ready: its data is restored as soon"),
        ("soon", "about to get ready", "plots is getting ready: its data is restored as soon"),
        ("ready", "ready: it was asked for", "plots is ready: all of its memory is on the GPU."),
        ("there", "ready: all is there", "plots is ready: all is there."),
        ("at_work", "ready: it is running", "plots is ready: it is running."),
        ("busy", "not getting ready: others wait", "plots is not getting ready: others wait."),
    ],
)
def test_ready_reports_what_happens(code: str, text: str, said: str) -> None:
    prefetch = {"stage": code} if code in ("restoring", "ready") else None
    answer = verbs.ready_text("plots", {"code": code, "text": text, "prefetch": prefetch})
    assert answer.startswith(said)


@pytest.mark.parametrize(
    ("line", "preference"),
    [
        ("background", {"priority": "background"}),
        ("interactive", {"priority": "interactive"}),
        ("keep on", {"keep": True}),
        ("keep off", {"keep": False}),
        ("auto", {"priority": "auto"}),
        ("limit 20GiB", {"memory": 20 << 30}),
        ("limit 1.5 G", {"memory": 3 << 29}),
        ("limit 50%", {"limit": 0.5}),
        ("limit 12.5 %", {"limit": 0.125}),
        ("limit off", {"memory": 0, "limit": 0.0}),
        ("memory 20GiB", {"memory": 20 << 30}),
        ("memory off", {"memory": 0}),
        ("request 25%", {"request": 0.25}),
        ("request off", {"request": 0.0}),
        ("weight 2", {"weight": 2.0}),
        ("weight 0.5", {"weight": 0.5}),
    ],
)
def test_preferences_are_set_for_this_kernel(line: str, preference: dict[str, Any]) -> None:
    shell, interposer = InteractiveShell(), Deaf()
    magic = Magic(shell, interposer, Cells(shell, interposer))
    magic(f"{line} --json")
    assert interposer.asked == [("adjust", {"group": "g", "later": True, **preference})]


async def test_preferences_work_before_and_after_the_first_use_of_the_gpu(scheduler: Ask) -> None:
    async with started() as kernel:
        for line, said in (
            ("background", "now has low priority"),
            ("keep on", "keeps its data on the GPU while it is idle"),
            ("limit 1GiB", "can now use at most 1 GiB on each GPU"),
            ("limit 90%", "can now use at most 90% of a GPU's time"),
            ("request 25%", "is now guaranteed 25% of a GPU's time"),
            ("weight 2", "now has the weight 2"),
        ):
            result = await kernel.execute(f"%gpushare {line}")
            assert result.reply["status"] == "ok"
            assert said in displayed(result)["text/plain"]
        await kernel.execute(SETUP)
        preferences = {**USUAL, "priority": "background", "keep": True, "memory": 1 << 30}
        preferences |= {"limit": 0.9, "request": 0.25, "weight": 2.0}
        assert group_of(scheduler, kernel)["preferences"] == preferences
        table = (await kernel.execute("%gpushare")).data()["text/plain"]
        assert "background, keep, memory 1 GiB, request 25%, limit 90%, weight 2  " in f"{table}  "
        printed = (await kernel.execute("%gpushare keep off --json")).stream("stdout")
        assert json.loads(printed)["preferences"] == {**preferences, "keep": False}
        for line, said in (
            ("interactive", "now goes ahead of background notebooks"),
            ("auto", "is now interactive when a cell starts"),
            ("memory off", "no longer has a limit on memory"),
            ("limit off", "no longer has a limit"),
            ("request off", "is no longer guaranteed GPU time"),
            ("weight 1", "has the weight 1"),
        ):
            assert said in displayed(await kernel.execute(f"%gpushare {line}"))["text/plain"]
        assert group_of(scheduler, kernel)["preferences"] == USUAL


async def test_oversubscription_is_turned_on_and_off(scheduler: Ask) -> None:
    async with started() as kernel:
        for words, answer in (("", False), (" on", True), ("", True), (" off", False)):
            said = displayed(await kernel.execute(f"%gpushare oversubscribe{words}"))
            assert said["text/plain"] == verbs.OVERSUBSCRIPTION[answer]
        printed = (await kernel.execute("%gpushare oversubscribe --json")).stream("stdout")
        assert json.loads(printed) == {"oversubscribe": False}
        await kernel.execute("import os; os.environ['GPUSHARE_FORBID_MANAGED'] = '1'")
        refused = await kernel.execute("%gpushare oversubscribe on")
        assert (
            "cannot use more memory than the GPU has: GPUSHARE_FORBID_MANAGED=1"
            in refused.stream("stderr")
        )


# --- A whole cell -------------------------------------------------------------------------------------------------


async def test_an_exclusive_cell_runs_like_others(scheduler: Ask) -> None:
    async with started() as kernel:
        # It need not have used the GPU.
        both = f"found = {GROUP}\n(found['preferences']['exclusive'], found['cell'] is not None)"
        first = await kernel.execute(f"%%gpushare exclusive\n{SETUP}\n{both}")
        assert first.data()["text/plain"] == "(True, True)"
        assert not exclusive(scheduler, kernel)
        # Its value is the cell's, await works in it, and so do other magics.
        last = await kernel.execute(
            "%%gpushare exclusive\nimport asyncio\nawait asyncio.sleep(0)\n%time work()\n6 * 7"
        )
        assert last.data()["text/plain"] == "42"
        assert last.stream("stdout").count("Wall time") == 1
        assert (await kernel.execute("_")).data()["text/plain"] == "42"
        for cell in ("%%time\n%%gpushare exclusive\n{}", "%%gpushare exclusive\n\n%%time\n{}"):
            timed = await kernel.execute(cell.format(f"{PREFERENCES}['exclusive']"))
            assert timed.data()["text/plain"] == "True"
            assert "Wall time" in timed.stream("stdout")
        # As an error's traceback has it, the line is the cell's own; it is shown once.
        failed = await kernel.execute("%%gpushare exclusive\nx = 1\n1 / 0")
        assert failed.errors() == ["ZeroDivisionError"]
        assert failed.reply["ename"] == "ZeroDivisionError"
        assert "line 3" in re.sub(r"\x1b\[[0-9;]*m", "", "".join(failed.reply["traceback"]))
        assert not exclusive(scheduler, kernel)
        # The rest of a cell.
        rest = await kernel.execute(f"x = 1\n%gpushare exclusive\n{PREFERENCES}['exclusive']")
        assert rest.data()["text/plain"] == "True"
        assert not exclusive(scheduler, kernel)
        printed = (await kernel.execute("%%gpushare exclusive --json\nx = 1")).stream("stdout")
        assert json.loads(printed)["preferences"]["exclusive"] is True
        # Run by the name of the magic, as in a script that nbconvert made of a notebook.
        script = "get_ipython().run_cell_magic('gpushare', 'exclusive', 'found = {}\\n')".format(
            PREFERENCES.replace("'", "\\'")
        )
        assert (await kernel.execute(f"{script}\nfound['exclusive']")).data() == {
            "text/plain": "True"
        }
        assert not exclusive(scheduler, kernel)


@pytest.mark.parametrize("body", ["6 * 7", "1 / 0", "raise KeyboardInterrupt", "1 +"])
def test_exclusive_ends_with_its_cell(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell, interposer = InteractiveShell(), Deaf()
    monkeypatch.setattr(library, "find_interposer", lambda: interposer)
    in_kernel.load(shell)
    shell.run_cell(f"%%gpushare exclusive\n{body}")
    shell.run_cell("6 * 7")
    in_kernel.unload_ipython_extension(shell)
    preferences = [params["exclusive"] if op == "adjust" else op for op, params in interposer.asked]
    # A cell that cannot be read runs nothing.
    asked = [] if body == "1 +" else [True, False]
    assert preferences == ["begin", *asked, "end", "begin", "end"]


async def test_an_interrupt_ends_an_exclusive_cell(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        running = await begin(kernel, f"%%gpushare exclusive\n{HOLD}")
        await eventually(lambda: exclusive(scheduler, kernel), "the cell is exclusive")
        await kernel.manager.interrupt_kernel()
        result = await asyncio.wait_for(running, 60)
        assert result.reply["ename"] == "KeyboardInterrupt"
        assert result.errors() == ["KeyboardInterrupt"]
        assert not exclusive(scheduler, kernel)


async def test_no_other_kernel_runs_during_an_exclusive_cell(
    scheduler: Ask, tmp_path: Path
) -> None:
    scheduler("set", anti_thrash="on")
    seen = tmp_path / "seen"
    # Others would run while it is quiet, were it not exclusive.
    cell = f"""
import os
work()
print('holds', flush=True)
while not os.path.exists({str(seen)!r}):
    work()
    time.sleep(0.3)
ended = time.monotonic()
"""
    async with started() as holder, started() as waiter:
        for kernel in (holder, waiter):
            assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        holding = await begin(holder, f"%%gpushare exclusive\n{cell}")
        waiting = asyncio.create_task(waiter.execute("work()\nran = time.monotonic()"))
        await eventually(
            lambda: (group_of(scheduler, waiter)["reason"] or {}).get("code") == "exclusive",
            "the waiter waits for the cell",
        )
        seen.touch()
        assert (await asyncio.wait_for(holding, 60)).reply["status"] == "ok"
        assert (await asyncio.wait_for(waiting, 60)).reply["status"] == "ok"
        ended = (await holder.execute("ended")).data()["text/plain"]
        ran = (await waiter.execute("ran")).data()["text/plain"]
        assert float(ran) > float(ended)


async def test_consoles_wait_for_the_body(scheduler: Ask) -> None:
    async with started() as kernel:
        found = []
        for code in (
            "%%gpushare exclusive",
            "%%gpushare exclusive\nx = 1",
            "%%gpushare exclusive\nx = 1\n\n",
        ):
            reply = await kernel.client.is_complete(code, reply=True, timeout=60)
            found.append(reply["content"]["status"])
        assert found == ["incomplete", "incomplete", "complete"]


# --- Wrong words, help and completion -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("nonsense", "Use %gpushare status | %gpushare release [GROUP] | "),
        ("relase", "Did you mean %gpushare release [GROUP]?"),
        ("backgruond", "Did you mean %gpushare background?"),
        ("status --xml", "The options are --json and --help"),
        ("status me", "Use %gpushare status"),
        ("background now", "Use %gpushare background"),
        ("keep", "Use %gpushare keep on|off"),
        ("keep maybe", "invalid argument 'maybe' for keep. Use %gpushare keep on|off"),
        ("keep on off", "Use %gpushare keep on|off"),
        ("limit", "Use %gpushare limit SIZE|N%|off"),
        ("limit much", "Use %gpushare limit SIZE|N%|off"),
        ("limit 0", "Use %gpushare limit SIZE|N%|off"),
        ("limit 101%", "Use %gpushare limit SIZE|N%|off"),
        ("memory 50%", "Use %gpushare memory SIZE|off"),
        ("request", "Use %gpushare request N%|off"),
        ("request 0%", "Use %gpushare request N%|off"),
        ("request 20GiB", "Use %gpushare request N%|off"),
        ("weight", "Use %gpushare weight N"),
        ("weight 0", "Use %gpushare weight N"),
        ("weight 2%", "Use %gpushare weight N"),
        ("auto on", "Use %gpushare auto"),
        ("explian", "Did you mean %gpushare explain [GROUP]?"),
        ("evict --all", "The options are --json and --help"),
        ("oversubscribe 2", "Use %gpushare oversubscribe [on|off]"),
        ("exclusive on", "Use %gpushare exclusive"),
        ("history 5", "Use %gpushare history"),
    ],
)
def test_wrong_arguments_are_answered_with_the_valid_ones(line: str, answer: str) -> None:
    magic = Magic(None, None, None)
    with pytest.raises(UsageError) as caught:
        magic(line)
    assert "\n" not in str(caught.value)
    assert answer in str(caught.value)


def test_a_whole_cell_is_only_for_exclusive() -> None:
    with pytest.raises(UsageError, match="one subcommand: %%gpushare exclusive"):
        Magic(None, None, None)("status", "x = 1")


async def test_a_wrong_cell_magic_does_not_run_the_cell(scheduler: Ask) -> None:
    async with started() as kernel:
        result = await kernel.execute("%%gpushare exclusiv\nprint(1)")
        assert "Did you mean %gpushare exclusive?" in result.stream("stderr")
        assert result.stream("stdout") == ""


async def test_help_is_shown(scheduler: Ask) -> None:
    async with started() as kernel:
        for line in ("%gpushare?", "%%gpushare?"):
            (page,) = (await kernel.execute(line)).reply["payload"]
            assert "%gpushare limit SIZE|N%|off" in page["data"]["text/plain"]
        for line in ("help", "--help", "keep -h"):
            data = (await kernel.execute(f"%gpushare {line}")).data()
            assert data["text/plain"] == verbs.help_text()
            assert data["text/html"].startswith("<pre>Show which notebooks use the GPU")
        printed = (await kernel.execute("%gpushare help --json")).stream("stdout")
        assert json.loads(printed) == {"help": verbs.help_text()}
    for verb in verbs.VERBS:
        assert verbs.usage(verb) in verbs.help_text()


async def complete(kernel: Kernel, code: str) -> list[str]:
    """What the kernel offers, all in place of the word that the cursor is in."""
    content = (await kernel.client.complete(code, reply=True, timeout=60))["content"]
    word = re.split(r"\s", code)[-1]
    assert content["cursor_end"] - content["cursor_start"] == len(word)
    return list(content["matches"])


@pytest.mark.parametrize("jedi", [True, False])
async def test_words_are_completed(jedi: bool, scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        await kernel.execute(f"%config IPCompleter.use_jedi = {jedi}")
        name = group_of(scheduler, kernel)["name"]
        for code, expected in {
            "%gpushare ": [*verbs.VERBS, "--json"],
            "%gpushare o": ["oversubscribe"],
            "x = 1\n%gpushare o": ["oversubscribe"],
            "found = %gpushare sta": ["status"],
            "%%gpushare ": ["exclusive", "--json"],
            "gpushare back": ["background"],
            "%gpushare keep ": ["on", "off", "--json"],
            "%gpushare keep of": ["off"],
            "%gpushare --json keep ": ["on", "off"],
            "%gpushare keep on ": ["--json"],
            "%gpushare limit ": ["off", "--json"],
            "%gpushare request ": ["off", "--json"],
            "%gpushare weight ": ["--json"],
            "%gpushare a": ["agent", "auto"],
            "%gpushare au": ["auto"],
            "%gpushare explain ": [name, "--json"],
            "%gpushare release ": [name, "--json"],
            "%gpushare status --": ["--json"],
        }.items():
            assert await complete(kernel, code) == expected
        # Elsewhere there is nothing of ours.
        assert "evict" not in await complete(kernel, "e")


def offered(shell: InteractiveShell, line: str) -> list[str]:
    with provisionalcompleter():
        return [found.text for found in shell.Completer.completions(line, len(line))]


def test_older_ipython_completes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("IPython.core.completer.context_matcher")
    shell = InteractiveShell()
    before = len(shell.Completer.custom_matchers)
    in_kernel.load(shell)
    try:
        assert len(shell.Completer.custom_matchers) == before
        assert {"on", "off"} <= set(offered(shell, "%gpushare keep o"))
    finally:
        in_kernel.unload_ipython_extension(shell)


def test_unloading_removes_everything() -> None:
    shell = InteractiveShell()
    before = offered(shell, "%gpushare keep o")
    transforms = list(shell.input_transformers_cleanup)
    in_kernel.load(shell)
    assert offered(shell, "%gpushare keep o") == ["on", "off"]
    in_kernel.unload_ipython_extension(shell)
    assert offered(shell, "%gpushare keep o") == before
    assert shell.input_transformers_cleanup == transforms
    assert shell.find_cell_magic("gpushare") is None
    assert shell.find_line_magic("gpushare") is None


@given(st.one_of(st.from_regex(r"\d{1,12}(\.\d+)? ?[kKMGT]?i?B?", fullmatch=True), st.text()))
def test_sizes_are_read_as_the_command_reads_them(text: str) -> None:
    try:
        expected = parse_size(text)
    except ValueError:
        expected = 0
    assert verbs.parse_size(text.strip()) == expected
