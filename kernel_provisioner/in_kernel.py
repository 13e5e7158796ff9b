# SPDX-License-Identifier: BSD-3-Clause
"""The part that runs inside of IPython kernels, in whatever environment they live.

One file, standard library only, in the syntax of Python 3.6. It finds the preloaded interposer through ctypes, tells it
when cells begin and end, gives torch's and cupy's unused memory back while others wait, shows a cancelled wait as
KeyboardInterrupt, and offers ``%gpushare``. Without the interposer, ``%gpushare`` says what is missing.

A fault in here must never break a cell: each hook is guarded and at worst leaves a line in the debug log.
"""

# ruff: noqa: B905, UP006, UP035, UP045 - the kernel's Python may be old

import ctypes
import errno
import functools
import html
import json
import logging
import os
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

log = logging.getLogger("gpushare")

USAGE = (
    "%gpushare [status] [--json] | %gpushare release [GROUP] | %gpushare offload [GROUP] | "
    "%gpushare oversubscribe [on|off]"
)

#: What ``%gpushare oversubscribe`` answers.
OVERSUBSCRIPTION = {
    True: "What this kernel allocates from now on may be more than the GPU has: what has no room there is used from "
    "the host's memory, at the speed of the bus.",
    False: "What this kernel allocates from now on may be as much as the GPU has; what it holds already stays.",
}

#: Room for a reply at first and at most (GPUSHARE_MAX_REPLY).
REPLY_BYTES = (1 << 18, 1 << 24)


class Failure(Exception):
    """Something cannot be done; the message is one sentence for the user."""


# --- The interposer -----------------------------------------------------------------------------------------------


class Interposer:
    """The preloaded library, as csrc/interposer/api.h declares it."""

    def __init__(self, library: Any) -> None:
        text = ctypes.c_char_p
        for name, result, arguments in (
            ("gpushare_version", text, []),
            ("gpushare_attached", ctypes.c_int, [ctypes.POINTER(text)]),
            ("gpushare_cell_begin", None, [text]),
            ("gpushare_cell_end", None, [text]),
            ("gpushare_contended", ctypes.c_uint32, []),
            ("gpushare_take_interrupt", ctypes.c_int, []),
            ("gpushare_control", ctypes.c_int64, [text, ctypes.c_char_p, ctypes.c_size_t]),
            ("gpushare_group", text, []),
            ("gpushare_oversubscribe", ctypes.c_int, [ctypes.c_int, ctypes.POINTER(text)]),
            ("gpushare_oversubscribes", ctypes.c_int, []),
        ):  # type: Tuple[str, Any, List[Any]]
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def cell_begin(self, msg_id: str) -> None:
        """A cell begins; never blocks."""
        self._library.gpushare_cell_begin(msg_id.encode())

    def cell_end(self, msg_id: str) -> None:
        """A cell ends; never blocks."""
        self._library.gpushare_cell_end(msg_id.encode())

    def contended(self) -> int:
        """How many others wait for the GPU."""
        return int(self._library.gpushare_contended())

    def take_interrupt(self) -> bool:
        """Whether a wait was cancelled since this was asked last."""
        return bool(self._library.gpushare_take_interrupt() == 1)

    def group(self) -> str:
        """The lease group of this process."""
        return bytes(self._library.gpushare_group() or b"").decode("utf-8", "replace")

    def oversubscribe(self, on: bool) -> None:
        """Let what is allocated from now on be more than the GPU has, or no longer."""
        why = ctypes.c_char_p()
        if self._library.gpushare_oversubscribe(int(on), ctypes.byref(why)) != 0:
            reason = (why.value or b"the interposer does not say why").decode("utf-8", "replace")
            raise Failure(f"this kernel cannot hold more than the GPU has: {reason}")

    def oversubscribes(self) -> bool:
        """Whether it may be more."""
        return bool(self._library.gpushare_oversubscribes() == 1)

    def out_of_the_way(self) -> Optional[str]:
        """Why the interposer lets everything pass, or None."""
        why = ctypes.c_char_p()
        if self._library.gpushare_attached(ctypes.byref(why)) >= 0:
            return None
        return (why.value or b"it is out of the way").decode("utf-8", "replace")

    def control(self, op: str, **params: Any) -> Dict[str, Any]:
        """Ask the scheduler (docs/control.md)."""
        request = json.dumps(dict(params, op=op, protocol=2)).encode()
        for size in REPLY_BYTES:
            reply = ctypes.create_string_buffer(size)
            length = self._library.gpushare_control(request, reply, size)
            if length != -errno.EMSGSIZE:
                break
        if length == -errno.ENOENT or length == -errno.ECONNREFUSED:
            raise Failure(
                "no scheduler answers at {}; is the Jupyter server with jupyter-gpushare still running?".format(
                    os.environ.get("GPUSHARE_SOCKET", "its socket")
                )
            )
        if length < 0:
            raise Failure(f"the scheduler cannot be asked: {os.strerror(-length)}")
        answer = json.loads(reply.raw[:length].decode("utf-8"))
        if not isinstance(answer, dict) or not answer.get("ok"):
            raise Failure(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
        return answer


def find_interposer() -> Optional[Interposer]:
    """The library, if it was preloaded into this process."""
    try:
        return Interposer(ctypes.CDLL(None))
    except (AttributeError, OSError):
        return None


def what_is_missing() -> str:
    """Why there is no interposer in this process, and what to do."""
    reason = os.environ.get("GPUSHARE_ABSENT")
    if reason:
        return f"this kernel runs without the interposer: {reason}; `gpushare doctor` checks it"
    if "libgpushare" in os.environ.get("LD_PRELOAD", ""):
        return (
            "the interposer was not loaded though LD_PRELOAD names it; `gpushare doctor` checks it"
        )
    return (
        "this kernel does not share the GPU: no CUDA driver was found, or it was not started by jupyter-gpushare; "
        "`gpushare doctor` says more, `gpushare kernelspec add NAME` makes a kernelspec for other front ends"
    )


# --- Cells --------------------------------------------------------------------------------------------------------


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep a hook's faults away from the user's cell."""

    @functools.wraps(hook)
    def guard(*args: Any) -> None:
        try:
            hook(*args)
        except Exception:
            log.debug("%s", hook.__name__, exc_info=True)

    return guard


class Cells:
    """Tells the interposer of cells.

    Cells may nest (``run_cell`` in a cell) and run side by side (subshells, each in its thread): the GPU is given up
    when the last one ends.
    """

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._lock = threading.Lock()
        self._running = {}  # type: Dict[int, Any]
        self._msg_id = ""
        self._interrupts = Interrupts(shell, interposer)

    def install(self) -> None:
        """Listen to the shell from now on."""
        self._interrupts.install()
        self._shell.events.register("pre_run_cell", self.pre_run_cell)
        self._shell.events.register("post_run_cell", self.post_run_cell)

    def remove(self) -> None:
        """Listen no more."""
        self._shell.events.unregister("pre_run_cell", self.pre_run_cell)
        self._shell.events.unregister("post_run_cell", self.post_run_cell)
        self._interrupts.remove()

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """A cell begins; `info` is the same object as its result's."""
        with self._lock:
            # Kept until its end, so that its id is not another's meanwhile.
            self._running[id(info)] = info
            if len(self._running) > 1:
                return
            self._msg_id = _parent_id(self._shell)
            # Left over from a wait of a background thread.
            self._interposer.take_interrupt()
            self._interposer.cell_begin(self._msg_id)

    @guarded
    def post_run_cell(self, result: Any) -> None:
        """A cell ended, in whatever way."""
        self._interrupts.correct(result)
        with self._lock:
            # The cell that loads this file ends without having begun.
            if self._running.pop(id(getattr(result, "info", None)), None) is None or self._running:
                return
            if self._interposer.contended() > 0:
                empty_caches()
            self._interposer.cell_end(self._msg_id)


def _parent_id(shell: Any) -> str:
    """The msg_id of the execute_request that runs; empty outside of a kernel."""
    parent = (
        shell.get_parent()
        if hasattr(shell, "get_parent")
        else getattr(shell, "parent_header", None)
    )
    return str(((parent or {}).get("header") or {}).get("msg_id", ""))


def empty_caches() -> None:
    """Give back what libraries keep for later, so that less has to move."""
    for empty in (_empty_torch, _empty_cupy):
        try:
            empty()
        except Exception:
            log.debug("%s", empty.__name__, exc_info=True)


def _empty_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    # To free memory would break a capture.
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.empty_cache()


def _empty_cupy() -> None:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return
    pool = cupy.get_default_memory_pool()
    if pool.free_bytes() > 0:
        pool.free_all_blocks()


# --- Interrupts ---------------------------------------------------------------------------------------------------


class Interrupts:
    """Shows what a cancelled wait made of a cell as what it is: KeyboardInterrupt.

    A wait for the GPU that is cancelled returns an error to its caller, which raises what it raises for CUDA errors.
    Python's own KeyboardInterrupt may come in before, after, or amid IPython's work on that exception.
    """

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._original = None  # type: Optional[Callable[..., None]]
        #: By thread: the interrupt that was shown in its cell.
        self._shown = {}  # type: Dict[int, KeyboardInterrupt]

    def install(self) -> None:
        """Stand before the shell's way of showing exceptions."""
        self._original = self._shell.showtraceback
        self._shell.showtraceback = self._showtraceback

    def remove(self) -> None:
        """Step aside."""
        # Another may have wrapped it since.
        if self._shell.showtraceback == self._showtraceback:
            self._shell.showtraceback = self._original

    def correct(self, result: Any) -> None:
        """Make the cell's result, and so the reply to the front end, say the same as what was shown."""
        shown = self._shown.pop(threading.get_ident(), None)
        if result is None:
            return
        error = result.error_before_exec or result.error_in_exec
        if shown is None and isinstance(error, Exception) and self._interposer.take_interrupt():
            shown = KeyboardInterrupt()
        if shown is not None and not isinstance(error, KeyboardInterrupt):
            result.error_before_exec = None
            result.error_in_exec = shown

    def _showtraceback(self, *args: Any, **kwargs: Any) -> None:
        assert self._original is not None
        try:
            interrupted = self._interposer.take_interrupt()
        except KeyboardInterrupt:
            interrupted = True
        if not interrupted:
            self._original(*args, **kwargs)
            return
        held = _hold_sigint()
        try:
            given = args[0] if args else kwargs.get("exc_tuple")
            _, value, trace = given or sys.exc_info()
            shown = (
                value
                if isinstance(value, KeyboardInterrupt)
                else KeyboardInterrupt("while waiting for the GPU")
            )
            # Neither the CUDA error that the cancelled wait returned nor what came of it is news.
            shown.__cause__ = shown.__context__ = None
            shown.__suppress_context__ = True
            self._shown[threading.get_ident()] = shown
            kwargs.pop("exc_tuple", None)
            shown = shown.with_traceback(trace)
            self._original((KeyboardInterrupt, shown, trace), *args[1:], **kwargs)
        finally:
            _restore_sigint(held)


def _hold_sigint() -> Any:
    """Ignore SIGINT, for one that arrives while a traceback is being formatted takes the traceback away."""
    if threading.current_thread() is not threading.main_thread():
        return None
    for _ in range(3):
        try:
            return signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            # This was the one.
            continue
    return None


def _restore_sigint(handler: Any) -> None:
    if handler is not None:
        signal.signal(signal.SIGINT, handler)


# --- %gpushare ----------------------------------------------------------------------------------------------------


class Magic:
    """``%gpushare``."""

    def __init__(self, interposer: Optional[Interposer]) -> None:
        self._interposer = interposer

    def __call__(self, line: str) -> Optional["Status"]:
        """Show who uses the GPU and who waits for it; give it up; move this kernel's memory out.

        ``%gpushare [status] [--json]``: who uses the GPU, who waits and why.
        ``%gpushare release [GROUP]``: give the GPU up now, though the cell goes on.
        ``%gpushare offload [GROUP]``: the same, and move the memory to the host.
        ``%gpushare oversubscribe [on|off]``: let new allocations be more than the GPU has (slower; docs/managed.md).
        """
        from IPython.core.error import UsageError

        words = line.split()
        try:
            return self._run(words)
        except Failure as failure:
            raise UsageError(f"gpushare: {failure}") from None

    def _run(self, words: List[str]) -> Optional["Status"]:
        verb = words[0] if words and not words[0].startswith("-") else "status"
        rest = words[1:] if words and words[0] == verb else words
        if verb == "status" and rest in ([], ["--json"]):
            interposer = self._present()
            status = Status(
                interposer.control("status")["status"],
                interposer.group(),
                interposer.out_of_the_way(),
            )
            if not rest:
                return status
            print(json.dumps(status.data, indent=2, sort_keys=True, ensure_ascii=False))
            return None
        if (
            verb in ("release", "offload")
            and len(rest) <= 1
            and not any(word.startswith("-") for word in rest)
        ):
            interposer = self._present()
            interposer.control(verb, group=rest[0] if rest else interposer.group())
            done = (
                "gives the GPU up"
                if verb == "release"
                else "gives the GPU up and moves its memory out"
            )
            print("{} {}.".format(rest[0] if rest else "This kernel", done))
            return None
        if verb == "oversubscribe" and rest in ([], ["on"], ["off"]):
            interposer = self._present()
            if rest:
                interposer.oversubscribe(rest == ["on"])
            print(OVERSUBSCRIPTION[interposer.oversubscribes()])
            return None
        raise Failure("this is not understood: {}; use {}".format(" ".join(words), USAGE))

    def _present(self) -> Interposer:
        if self._interposer is None:
            raise Failure(what_is_missing())
        return self._interposer


class Status:
    """The scheduler's status, shown as a table."""

    HEADINGS = ("", "notebook", "state", "memory", "on the GPU", "in host memory", "why")

    def __init__(
        self, data: Dict[str, Any], own: str, out_of_the_way: Optional[str] = None
    ) -> None:
        self.data = data
        self._own = own
        self._out_of_the_way = out_of_the_way

    def lines(self) -> List[str]:
        """What is said of the GPUs, and of this kernel if it does not take part."""
        said = []
        for gpu in self.data.get("gpus", []):
            used, total, foreign = (size(gpu.get(key) or 0) for key in ("used", "total", "foreign"))
            said.append(
                f"GPU {gpu.get('index', '?')} ({gpu.get('name', '?')}): {used} of {total} in use, "
                f"{foreign} by programs outside gpushare"
            )
        if self._out_of_the_way:
            said.append(f"This kernel does not take part: {self._out_of_the_way}")
        return said

    def rows(self) -> List[Tuple[str, ...]]:
        """One row for each lease group: those that run, the queue in its order, the others."""
        rows = []  # type: List[Tuple[str, ...]]
        for group in sorted(self.data.get("groups", []), key=_rank):
            gpus = group.get("gpus", [])
            rows.append(
                (
                    "*" if group.get("id") == self._own else "",
                    str(group.get("name") or group.get("id")),
                    state_text(group),
                    size(sum(gpu.get("footprint", 0) + gpu.get("pinned", 0) for gpu in gpus)),
                    size(sum(gpu.get("resident", 0) + gpu.get("pinned", 0) for gpu in gpus)),
                    size(sum(gpu.get("swapped", 0) for gpu in gpus)),
                    reason_text(group.get("reason")),
                )
            )
        return rows

    def __repr__(self) -> str:
        rows = self.rows()
        if not rows:
            return "\n".join([*self.lines(), "No notebook uses the GPU."])
        table = [self.HEADINGS, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.HEADINGS))]
        text = [
            "  ".join(
                cell.rjust(width) if column in (3, 4, 5) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in table
        ]
        return "\n".join(self.lines() + text)

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.lines())
        rows = self.rows()
        if not rows:
            return said + "<p>No notebook uses the GPU.</p>"
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in self.HEADINGS[1:])
        body = []
        for row in rows:
            cells = []
            for column, cell in enumerate(row[1:], start=1):
                text = html.escape(cell)
                if column == 1 and row[0]:
                    text = f"<strong>{text}</strong>"
                align = (
                    ' style="text-align: right"'
                    if column in (3, 4, 5)
                    else ' style="text-align: left"'
                )
                cells.append(f"<td{align}>{text}</td>")
            body.append("<tr>{}</tr>".format("".join(cells)))
        return "{}<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>".format(
            said, head, "".join(body)
        )


def _rank(group: Dict[str, Any]) -> Tuple[int, int, str]:
    order = ("running", "held", "yielding", "moving", "waiting", "idle")
    state = group.get("state")
    return (
        order.index(state) if state in order else len(order),
        group.get("position") or 0,
        str(group.get("name")),
    )


def state_text(group: Dict[str, Any]) -> str:
    """A group's state, and its place in the queue."""
    state = str(group.get("state"))
    position = group.get("position")
    return state if state != "waiting" or position is None else f"waiting ({position})"


# The same sentences as `gpushare status` has (cli/wording.py), which cannot be imported here.


def reason_text(reason: Optional[Dict[str, Any]]) -> str:
    """Why a group waits, in words (docs/control.md names the codes)."""
    if not reason:
        return ""
    code = str(reason.get("code", ""))
    try:
        return REASONS[code](reason.get("params", {}))
    except (KeyError, TypeError):
        return code


def _holder(given: Dict[str, Any]) -> str:
    return str(given.get("holder_name") or given.get("holder") or "another")


def _within(seconds: Optional[float], otherwise: str) -> str:
    return otherwise if seconds is None else f" within {duration(seconds)}"


def _soon(given: Dict[str, Any]) -> str:
    return _within(given.get("yields_in"), " when its work is over")


REASONS = {
    "needs_memory": lambda given: (
        f"needs {size(given['need'])}, {size(given['lack'])} more than is free; {_holder(given)} yields{_soon(given)}"
    ),
    "serialised": lambda given: (
        f"one at a time (anti-thrash is on); {_holder(given)} yields{_soon(given)}"
    ),
    "making_room": lambda given: (
        f"moving {size(given['lack'])} of {', '.join(map(str, given['victims'])) or 'others'} out to make room"
    ),
    "filling": lambda given: (
        f"its memory is arriving{' while that of ' * bool(given['victims'])}"
        f"{', '.join(map(str, given['victims']))}{' leaves' * bool(given['victims'])}: "
        f"{size(given['arrived'])} of {size(given['footprint'])}"
    ),
    "draining": lambda given: (
        f"{_holder(given)}'s last GPU work has been ending for {duration(given['for'])}"
    ),
    "behind": lambda given: f"{given.get('ahead_name') or given.get('ahead')} is first",
    "residency": lambda given: (
        f"{_holder(given)} only just got its memory in; it may go{_within(given.get('until_in'), '')}"
    ),
    "foreign_use": lambda given: (
        f"lacks {size(given['lack'])}; programs outside gpushare hold {size(given['foreign'])}"
    ),
    "crowded": lambda given: (
        f"lacks {size(given['lack'])}; others hold {size(given['fixed'])} that cannot move "
        "(CUDA contexts, shared memory): shut a notebook down, or restart one that holds such memory"
    ),
    "dying": lambda given: f"{size(given['ghosts'])} of a process that has ended are not free yet",
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]


def size(amount: float) -> str:
    """Bytes in words."""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in words."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# --- Loading ------------------------------------------------------------------------------------------------------


def load(shell: Any = None) -> None:
    """Install everything into IPython; once, and without a word."""
    if shell is None:
        from IPython import get_ipython  # type: ignore[attr-defined,unused-ignore]

        shell = get_ipython()
    _run_skipped_startup(shell)
    if shell is None or getattr(shell, "_gpushare", None) is not None:
        return
    interposer = find_interposer()
    cells = None if interposer is None else Cells(shell, interposer)
    if cells is not None:
        cells.install()
    shell.register_magic_function(Magic(interposer), "line", "gpushare")
    shell._gpushare = (interposer, cells)


def _run_skipped_startup(shell: Any) -> None:
    """Run the user's PYTHONSTARTUP, which IPython skips where it is given code to run."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    startup = os.environ.get("PYTHONSTARTUP")
    if app is None or not startup or "_gpushare_in_kernel" not in getattr(app, "code_to_run", ""):
        return
    app.code_to_run = ""
    if not app.exec_PYTHONSTARTUP:
        return
    try:
        app._exec_file(startup)
    except Exception:
        app.log.warning("Unknown error in handling PYTHONSTARTUP file %s:", startup)
        shell.showtraceback()
    if app.hide_initial_ns:
        shell.user_ns_hidden.update(shell.user_ns)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext``, for kernels that were not started by us."""
    load(shell)
    if shell._gpushare[0] is None:
        print("gpushare: " + what_is_missing())


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext``."""
    _, cells = getattr(shell, "_gpushare", None) or (None, None)
    if cells is not None:
        cells.remove()
    shell.magics_manager.magics["line"].pop("gpushare", None)
    shell._gpushare = None
