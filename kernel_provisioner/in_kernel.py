# SPDX-License-Identifier: BSD-3-Clause
"""The part that runs inside of IPython kernels, in whatever environment they live.

One file, standard library only, in the syntax of Python 3.6. It finds the preloaded interposer through ctypes, tells it
when cells begin and end, gives torch's and cupy's unused memory back while others wait, shows a cancelled wait as
KeyboardInterrupt, and offers ``%gpushare``. Without the interposer, ``%gpushare`` says what is missing.

A fault in here must never break a cell: each hook is guarded and at worst leaves a line in the debug log.
"""

# ruff: noqa: B905, UP006, UP035, UP045 - the kernel's Python may be old

import ctypes
import difflib
import errno
import functools
import html
import importlib.util
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Optional, Tuple

log = logging.getLogger("gpushare")

#: What ``%gpushare`` understands: by verb, its arguments (in brackets: not needed) and what it does.
VERBS = {
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
}  # type: Dict[str, Tuple[str, str]]

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

#: Said where the interposer lets everything pass, with the reason.
NO_PART = "This kernel does not take part: "

#: The version of control requests (GPUSHARE_CONTROL_VERSION).
PROTOCOL = 6

#: Room for a reply at first and at most (GPUSHARE_MAX_REPLY).
REPLY_BYTES = (1 << 18, 1 << 24)

#: Seconds that ``history`` looks back, and the most lines that it shows.
HISTORY = 600.0
HISTORY_LINES = 40


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
        request = json.dumps(dict(params, op=op, protocol=PROTOCOL)).encode()
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
        if length == -errno.ENAMETOOLONG:
            path = os.environ.get("GPUSHARE_SOCKET", "")
            raise Failure(
                f"the path of the scheduler's socket has {len(os.fsencode(path))} bytes, "
                f"and a socket's path may have 107: {path}; set GPUSHARE_SOCKET to a shorter path"
            )
        if length == -errno.EACCES:
            raise Failure(
                "the scheduler at {} is another user's, or does not know this kernel; restart the kernel".format(
                    os.environ.get("GPUSHARE_SOCKET", "its socket")
                )
            )
        if length < 0:
            raise Failure(f"the scheduler cannot be asked: {os.strerror(-length)}")
        answer = json.loads(reply.raw[:length].decode("utf-8"))
        if not isinstance(answer, dict) or not answer.get("ok"):
            raise Failure(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
        del answer["ok"]
        return answer

    def attached(self) -> bool:
        """Whether this process is a client of the scheduler: it has used CUDA."""
        return bool(self._library.gpushare_attached(None) > 0)

    def attach(self) -> None:
        """Begin to use CUDA; what is wrong with it the user's own use will find."""
        self._library.cuInit(0)

    def tell_of_cell(self, msg_id: str) -> None:
        """A cell has begun before this process was a client."""
        self.control("cell", group=self.group(), phase="begin", msg_id=msg_id, at=time.monotonic())

    def adjust(self, **wishes: Any) -> Dict[str, Any]:
        """Ask something for this kernel, also before it has used the GPU."""
        return self.control("adjust", group=self.group(), later=True, **wishes)


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
        "this kernel does not share the GPU. Either no CUDA driver was found, or its front end (such as papermill, "
        "nbconvert or jupyter console) started it without jupyter-gpushare. To share the GPU in every front end, run "
        "`gpushare kernelspec add shared` and choose the kernelspec `shared`. `gpushare doctor` checks the rest."
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
    """Tells the interposer of cells, from when their requests come.

    Cells may nest (``run_cell`` in a cell) and run side by side (subshells, each in its thread): the GPU is given up
    when the last one ends.
    """

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._lock = threading.Lock()
        self._requests = Requests(shell, self.requested, self.request_over)
        #: Requests whose cells have not begun.
        self._awaited = []  # type: List[str]
        self._running = {}  # type: Dict[int, Any]
        #: What the interposer knows the present cell by; empty while there is none.
        self._msg_id = ""
        self._exclusive = False
        self._interrupts = Interrupts(shell, interposer)

    def install(self) -> None:
        """Listen to the shell from now on."""
        self._interrupts.install()
        self._shell.events.register("pre_run_cell", self.pre_run_cell)
        self._shell.events.register("post_run_cell", self.post_run_cell)
        self._requests.install()

    def remove(self) -> None:
        """Listen no more."""
        self._requests.remove()
        self._shell.events.unregister("pre_run_cell", self.pre_run_cell)
        self._shell.events.unregister("post_run_cell", self.post_run_cell)
        self._interrupts.remove()
        with self._lock:
            self._awaited, self._running = [], {}
            self._end()

    @guarded
    def requested(self, msg_id: str) -> None:
        """A cell will begin within a millisecond; who has to make room for it is told now."""
        with self._lock:
            self._awaited.append(msg_id)
            if not self._msg_id:
                self._begin(msg_id)

    @guarded
    def request_over(self, msg_id: str) -> None:
        """No cell will begin for the request, if none has."""
        with self._lock:
            if msg_id in self._awaited:
                self._awaited.remove(msg_id)
                self._end()

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """A cell begins; `info` is the same object as its result's."""
        msg_id = _parent_id(self._shell)
        with self._lock:
            if msg_id in self._awaited:
                self._awaited.remove(msg_id)
            # Kept until its end, so that its id is not another's meanwhile.
            self._running[id(info)] = info
            if len(self._running) > 1:
                return
            # Left over from a wait of a background thread.
            self._interposer.take_interrupt()
            # An interrupt may have come between the last cell's end and its being heard.
            self._share_again()
            # Said again if its request was: ipykernel may have changed the handler of interrupts since.
            self._begin(msg_id or str(uuid.uuid4()))

    @guarded
    def post_run_cell(self, result: Any) -> None:
        """A cell ended, in whatever way."""
        self._interrupts.correct(result)
        with self._lock:
            # The cell that loads this file ends without having begun.
            if self._running.pop(id(getattr(result, "info", None)), None) is not None:
                self._end()

    def _begin(self, msg_id: str) -> None:
        self._msg_id = self._msg_id or msg_id
        self._interposer.cell_begin(self._msg_id)

    def _end(self) -> None:
        if self._running or self._awaited or not self._msg_id:
            return
        msg_id, self._msg_id = self._msg_id, ""
        self._share_again()
        if self._interposer.contended() > 0:
            empty_caches()
        self._interposer.cell_end(msg_id)

    def keep_others_out(self) -> Dict[str, Any]:
        """Keep the lease until the cell ends, once there is one."""
        with self._lock:
            if not self._running:
                raise Failure("no cell is open whose end would give the GPU back")
            if not self._interposer.attached():
                # Only a client of the scheduler can have a cell for itself, and this one is told of late.
                self._interposer.attach()
                self._interposer.tell_of_cell(self._msg_id)
            self._exclusive = True
            return self._interposer.adjust(exclusive=True)

    def _share_again(self) -> None:
        if self._exclusive:
            self._exclusive = False
            try:
                self._interposer.adjust(exclusive=False)
            except Failure:
                # The scheduler ends it too, with the cell.
                log.debug("exclusive", exc_info=True)


#: What CUDA libraries raise where the GPU has no memory left.
OUT_OF_MEMORY = re.compile(
    r"CUDA.{0,40}out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED"
    r"|(torch|cupy)\S*OutOfMemoryError|ResourceExhaustedError",
    re.IGNORECASE | re.DOTALL,
)


class OutOfMemoryHint:
    """Explains why the GPU has no memory left for a kernel that does not share it."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hook = guarded(self._post_run_cell)

    def install(self) -> None:
        """Look at each cell's error from now on."""
        self._shell.events.register("post_run_cell", self._hook)

    def remove(self) -> None:
        """Stop looking."""
        self._shell.events.unregister("post_run_cell", self._hook)

    def _post_run_cell(self, result: Any) -> None:
        error = result.error_in_exec
        if error is None:
            return
        kind = type(error)
        if OUT_OF_MEMORY.search(f"{kind.__module__}.{kind.__name__}: {error}"):
            sys.stderr.write(
                "gpushare: this kernel does not share the GPU, so it cannot use GPU memory that idle notebooks hold. "
                "Run %gpushare to see how to share it.\n"
            )


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


# --- Requests -----------------------------------------------------------------------------------------------------


class Requests:
    """Hears of a kernel's requests to execute before the kernel parses, publishes and runs them.

    Parameters
    ----------
    shell
        The shell; without a kernel around it, nothing is heard.
    come, over
        What to call, with the msg_id, before a request is handled and after.
    """

    def __init__(
        self, shell: Any, come: Callable[[str], None], over: Callable[[str], None]
    ) -> None:
        self._handlers = getattr(getattr(shell, "kernel", None), "shell_handlers", None)  # type: Any
        self._come = come
        self._over = over
        self._original = None  # type: Optional[Callable[..., Any]]
        self._wrapper = None  # type: Optional[Callable[..., Any]]

    @guarded
    def install(self) -> None:
        """Stand before the kernel's handler."""
        if self._wrapper is not None or not isinstance(self._handlers, dict):
            return
        original = self._handlers.get("execute_request")
        if callable(original):
            self._original, self._wrapper = original, self._wrap(original)
            self._handlers["execute_request"] = self._wrapper

    @guarded
    def remove(self) -> None:
        """Step aside."""
        wrapper, self._wrapper = self._wrapper, None
        # Another may have wrapped it since: then it stays, and says nothing.
        if wrapper is not None and self._handlers.get("execute_request") is wrapper:
            self._handlers["execute_request"] = self._original

    def _wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def execute_request(*args: Any, **kwargs: Any) -> Any:
            if self._wrapper is not execute_request:
                return handler(*args, **kwargs)
            msg_id = _requested_id(args + tuple(kwargs.values()))
            if not msg_id:
                return handler(*args, **kwargs)
            try:
                self._come(msg_id)
                return self._until_done(handler(*args, **kwargs), msg_id)
            except BaseException:
                self._over(msg_id)
                raise

        return execute_request

    def _until_done(self, result: Any, msg_id: str) -> Any:
        if hasattr(result, "add_done_callback"):
            # Old versions of ipykernel wait for futures and for nothing else.
            result.add_done_callback(lambda _: self._over(msg_id))
        elif hasattr(result, "__await__"):
            return self._follow(result, msg_id)
        else:
            self._over(msg_id)
        return result

    async def _follow(self, handling: Any, msg_id: str) -> Any:
        try:
            return await handling
        finally:
            self._over(msg_id)


def _requested_id(arguments: Tuple[Any, ...]) -> str:
    """The msg_id of the request among a handler's arguments; empty if there is none, or none that is a cell."""
    try:
        for message in arguments:
            if isinstance(message, dict) and "header" in message:
                silent = message["content"].get("silent", False)
                return "" if silent else str(message["header"]["msg_id"])
    except Exception:
        log.debug("execute_request", exc_info=True)
    return ""


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
    choices = _choices(verb)
    if verb in PARSERS:
        try:
            PARSERS[verb](given)
        except Failure:
            return False
        return True
    return given in choices or "GROUP" in choices


def _choices(verb: str) -> List[str]:
    arguments = VERBS[verb][0].strip("[]")
    return arguments.split("|") if arguments else []


def _words(verb: str) -> List[str]:
    """The arguments that are written as they stand."""
    return [choice for choice in _choices(verb) if choice.islower()]


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
PARSERS = {
    "limit": parse_limit,
    "memory": parse_memory,
    "request": lambda text: {"request": parse_part(text)},
    "weight": lambda text: {"weight": parse_weight(text)},
}  # type: Dict[str, Callable[[str], Dict[str, Any]]]


#: The line up to the cursor where something of ours may be completed: also in an assignment, and without its %.
COMPLETED = r"(.*%|\s*)gpushare\s+(.*)$"


class Magic:
    """``%gpushare`` and ``%%gpushare``."""

    def __init__(
        self, shell: Any, interposer: Optional[Interposer], cells: Optional[Cells]
    ) -> None:
        self._shell = shell
        self._interposer = interposer
        self._cells = cells
        self.__doc__ = help_text()

    def __call__(self, line: str, cell: Optional[str] = None) -> Optional["Answer"]:
        """Do what the line says, and answer."""
        from IPython.core.error import UsageError

        try:
            verb, given, as_json = parse(line)
            if cell is not None and verb != "exclusive":
                raise Failure("a whole cell can be made exclusive; use %%gpushare exclusive")
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

    def _answer(self, verb: str, given: str) -> "Answer":
        if verb == "help":
            return Help({"help": help_text()}, help_text())
        if self._interposer is None or self._cells is None:
            raise Failure(what_is_missing())
        interposer, own = self._interposer, self._interposer.group()
        if verb == "status":
            status = interposer.control("status")["status"]
            return Status(status, own, interposer.out_of_the_way())
        if verb == "history":
            return History(interposer.control("status", timeline=0)["status"], own)
        if verb == "explain":
            asked = {"group": given} if given else {}
            explanation = interposer.control("explain", **asked)["explanation"]
            return Explanation(explanation, "\n".join(explanation_lines(explanation)))
        if verb == "oversubscribe":
            if given:
                interposer.oversubscribe(given == "on")
            on = interposer.oversubscribes()
            return Answer({"oversubscribe": on}, OVERSUBSCRIPTION[on])
        if verb == "exclusive":
            return Answer(self._cells.keep_others_out(), self._but())
        if verb in ("release", "offload", "hibernate", "wake"):
            done = interposer.control(verb, group=given or own)
            return Answer(done, DONE[verb].format(given or "This kernel"))
        if verb == "keep":
            return self._adjusted(f"keep {given}", keep=given == "on")
        if verb in PARSERS:
            wishes = PARSERS[verb](given)
            if given == "off":
                return self._adjusted(f"{verb} off", **wishes)
            ((what, asked),) = wishes.items()
            words = {"memory": size, "weight": "{:g}".format}.get(what, percent)
            return self._adjusted(what, words(asked), **wishes)
        return self._adjusted(verb, priority=verb)

    def _adjusted(self, what: str, amount: str = "", **wishes: Any) -> "Answer":
        assert self._interposer is not None
        done = self._interposer.adjust(**wishes)
        said = [DONE[what].format("This kernel", amount), self._but()]
        return Answer(done, " ".join(filter(None, said)))

    def _but(self) -> str:
        why = None if self._interposer is None else self._interposer.out_of_the_way()
        return f"{NO_PART}{why}." if why else ""

    def _run(self, cell: str) -> None:
        # Only where nobody transformed the cell: `exclusive_cell`.
        source = self._shell.input_transformer_manager.transform_cell(cell)
        name = self._shell.compile.cache(source)
        exec(self._shell.compile(source, name, "exec"), self._shell.user_ns)

    def complete(self, before: str) -> List[str]:
        """What may stand at the cursor, given the line up to there; it may be written in part."""
        match = re.match(COMPLETED, before)
        if match is None:
            return []
        words = match.group(2).split(" ")[:-1]
        options = [] if "--json" in words else ["--json"]
        words = [word for word in words if word not in ("", "--json")]
        if not words:
            whole = match.group(1).strip() == "%%"
            return (["exclusive"] if whole else list(VERBS)) + options
        if len(words) > 1 or words[0] not in VERBS:
            return options
        choices = _words(words[0])
        if "GROUP" in _choices(words[0]):
            choices += self._groups()
        return choices + options

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

    cell_magic = inputtransformer2.cell_magic  # type: Callable[[List[str]], List[str]]
    rest = lines[1:]
    while rest and not rest[0].strip():
        rest.pop(0)
    # Only one that comes first is a cell magic.
    code = lines[1:] if not rest or not rest[0].startswith("%%") else cell_magic(rest)
    return [lines[0].lstrip()[1:], *code]


# Consoles ask whether a cell is complete, and a cell magic is so after an empty line; without this they skip it there.
exclusive_cell.has_side_effects = True  # type: ignore[attr-defined]


class Answer:
    """What is said, as data and in words."""

    def __init__(self, data: Dict[str, Any], text: str) -> None:
        self.data = data
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._text)}</p>"


class Help(Answer):
    """The help, whose columns stay aligned."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


class Explanation(Answer):
    """Which rule put whom before whom: a line each."""

    def _repr_html_(self) -> str:
        return "".join(
            f'<p style="margin-left: {len(line) - len(line.lstrip())}em">{html.escape(line.strip())}</p>'
            for line in self._text.splitlines()
        )


class Table(Answer):
    """Lines of text, and a table below them."""

    #: The first column marks this kernel.
    HEADINGS = ()  # type: Tuple[str, ...]
    #: Columns of numbers.
    RIGHT = ()  # type: Tuple[int, ...]
    #: What is said if there are no rows.
    EMPTY = ""

    def __init__(self, data: Dict[str, Any], own: str) -> None:
        super().__init__(data, "")
        self._own = own

    def lines(self) -> List[str]:
        """What is said before the table."""
        return []

    def rows(self) -> List[Tuple[str, ...]]:
        """The table's rows."""
        raise NotImplementedError

    def _mark(self, group: Any) -> str:
        return "*" if group == self._own else ""

    def __repr__(self) -> str:
        rows = self.rows()
        if not rows:
            return "\n".join([*self.lines(), self.EMPTY])
        table = [self.HEADINGS, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.HEADINGS))]
        text = [
            "  ".join(
                cell.rjust(width) if column in self.RIGHT else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in table
        ]
        return "\n".join(self.lines() + text)

    def _repr_html_(self) -> str:
        rows = self.rows()
        said = [*self.lines(), *([] if rows else [self.EMPTY])]
        text = "".join(f"<p>{html.escape(line)}</p>" for line in said)
        if not rows:
            return text
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.HEADINGS[1:])
        body = []
        for row in rows:
            cells = []
            for column, cell in enumerate(row[1:], start=1):
                shown = html.escape(cell)
                if column == self.HEADINGS.index("notebook") and row[0]:
                    shown = f"<strong>{shown}</strong>"
                side = "right" if column in self.RIGHT else "left"
                cells.append(f'<td style="text-align: {side}">{shown}</td>')
            body.append("<tr>{}</tr>".format("".join(cells)))
        return "{}<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>".format(
            text, head, "".join(body)
        )


class Status(Table):
    """The scheduler's status."""

    HEADINGS = (
        "",
        "notebook",
        "state",
        "class",
        "memory",
        "on the GPU",
        "in host memory",
        "wishes",
        "why",
    )
    RIGHT = (4, 5, 6)
    EMPTY = "No notebook uses the GPU."

    def __init__(
        self, data: Dict[str, Any], own: str, out_of_the_way: Optional[str] = None
    ) -> None:
        super().__init__(data, own)
        self._out_of_the_way = out_of_the_way

    def lines(self) -> List[str]:
        """What is said of the GPUs, and of this kernel if it does not take part."""
        said = []
        if self.data.get("maintenance"):
            said.append("Maintenance: {}".format(self.data["maintenance"]))
        for gpu in self.data.get("gpus", []):
            used, total, foreign = (size(gpu.get(key) or 0) for key in ("used", "total", "foreign"))
            said.append(
                f"GPU {gpu.get('index', '?')} ({gpu.get('name', '?')}): {used} of {total} in use, "
                f"{foreign} by programs outside gpushare"
                + (", being emptied by an administrator" if gpu.get("draining") else "")
            )
        if hibernation_text(self.data):
            said.append(hibernation_text(self.data) + ".")
        if self._out_of_the_way:
            said.append(NO_PART + self._out_of_the_way)
        return said

    def rows(self) -> List[Tuple[str, ...]]:
        """One row for each lease group: those that run, the queue in its order, the others."""
        rows = []  # type: List[Tuple[str, ...]]
        for group in sorted(self.data.get("groups", []), key=rank):
            gpus = group.get("gpus", [])
            rows.append(
                (
                    self._mark(group.get("id")),
                    str(group.get("name") or group.get("id")),
                    state_text(group),
                    str(group.get("class") or ""),
                    size(sum(gpu.get("footprint", 0) + gpu.get("pinned", 0) for gpu in gpus)),
                    size(sum(gpu.get("resident", 0) + gpu.get("pinned", 0) for gpu in gpus)),
                    size(sum(gpu.get("swapped", 0) for gpu in gpus)),
                    wishes_text(group.get("wishes")),
                    remark(group),
                )
            )
        return rows


#: Kinds of spans in words: while they last, and afterwards.
SPANS = {
    "burst": ("runs", "ran"),
    "wait": ("waits", "waited"),
    "in": ("moves in", "moved in"),
    "out": ("moves out", "moved out"),
    "hibernated": ("is hibernated", "was hibernated"),
}


class History(Table):
    """What the scheduler's timeline has of the last minutes (docs/lab.md)."""

    HEADINGS = ("", "at", "notebook", "what", "for", "memory")
    RIGHT = (4, 5)
    EMPTY = "No notebook has used the GPU in the last {}."

    def __init__(self, status: Dict[str, Any], own: str) -> None:
        timeline, now = status.get("timeline"), float(status["time"])
        if timeline is None:
            raise Failure("this scheduler keeps no timeline; restart the Jupyter servers")
        start = max(float(timeline["start"]), now - HISTORY)
        spans = [span for span in timeline["spans"] if span["end"] is None or span["end"] > start]
        spans.sort(key=lambda span: (span["start"], span["id"]))
        shown = spans[-HISTORY_LINES:]
        super().__init__(
            {"time": now, "start": start, "spans": shown, "left_out": len(spans) - len(shown)}, own
        )
        self.EMPTY = self.EMPTY.format(duration(now - start))

    def lines(self) -> List[str]:
        """What the table leaves out."""
        left_out = self.data["left_out"]
        said = "The last {} things that happened; {} more within {}."
        if not left_out:
            return []
        return [
            said.format(HISTORY_LINES, left_out, duration(self.data["time"] - self.data["start"]))
        ]

    def rows(self) -> List[Tuple[str, ...]]:
        """One row for each burst, wait and move, the last one at the end."""
        now, clock = self.data["time"], time.time()
        rows = []  # type: List[Tuple[str, ...]]
        for span in self.data["spans"]:
            lasts, lasted = SPANS.get(span["kind"], (span["kind"], span["kind"]))
            end = span["end"]
            at = time.localtime(clock - (now - span["start"]))
            rows.append(
                (
                    self._mark(span["group"]),
                    time.strftime("%H:%M:%S", at),
                    str(span.get("name") or span["group"]),
                    lasts if end is None else lasted,
                    duration((now if end is None else end) - span["start"]),
                    size(span["bytes"]) if span.get("bytes") else "",
                )
            )
        return rows


#: What each state is called, in the order in which they are listed; the Lab and the Hub page have the same words.
STATES = {
    "running": "running",
    "yielding": "yielding",
    "moving": "moving in",
    "waking": "waking",
    "waiting": "waiting",
    "held": "idle lease",
    "idle": "idle",
    "hibernated": "hibernated",
}


def rank(group: Dict[str, Any]) -> Tuple[int, int, str]:
    """By what groups are sorted in a list."""
    order, state = list(STATES), group.get("state")
    return (
        order.index(state) if state in order else len(order),
        group.get("position") or 0,
        str(group.get("name")),
    )


def state_text(group: Dict[str, Any]) -> str:
    """A group's state, and its place in the queue."""
    state, position = str(group.get("state")), group.get("position")
    word = STATES.get(state, state)
    return word if state != "waiting" or position is None else f"{word} ({position})"


# The command `gpushare` has its words from here (wording.py): this file can import nothing of it.


def reason_text(reason: Optional[Dict[str, Any]]) -> str:
    """Why a group waits, in words (docs/control.md names the codes)."""
    if not reason:
        return ""
    code = str(reason.get("code", ""))
    try:
        return REASONS[code](reason.get("params", {}))
    except (KeyError, TypeError):
        return code


def estimate_text(found: Any) -> str:
    """How long a wait goes on, with the interval in which nine of ten such waits end."""
    try:
        seconds, low, high = (max(0.0, float(found[key])) for key in ("seconds", "low", "high"))
    except (KeyError, TypeError, ValueError):
        return ""
    if high >= 59.5:
        return f"about {duration(seconds)} ({duration(low)} to {duration(high)})"
    # Outwards, for it is the interval that is promised.
    step = 1.0 if seconds >= 0.95 else 0.1
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    about, low_text, high_text = (f"{value:.{int(step < 1)}f}" for value in (seconds, low, high))
    return f"about {about} s ({low_text}-{high_text} s)"


def wishes_text(wishes: Optional[Dict[str, Any]]) -> str:
    """What people ask for a group, where it is not the usual."""
    given = wishes or {}
    said = [
        str(given["priority"]) if given.get("priority", "auto") != "auto" else "",
        "keep" if given.get("keep") else "",
        "frozen" if given.get("frozen") else "",
        "on hold" if given.get("held") else "",
        "memory {}".format(size(given["memory"])) if given.get("memory") else "",
        "request {}".format(percent(given["request"])) if given.get("request") else "",
        "limit {}".format(percent(given["limit"])) if given.get("limit") else "",
        "weight {:g}".format(given["weight"]) if given.get("weight", 1) != 1 else "",
        "exclusive" if given.get("exclusive") else "",
    ]
    return ", ".join(word for word in said if word)


def remark(group: Dict[str, Any]) -> str:
    """Why a group waits and for about how long, or when it yields."""
    said = [reason_text(group.get("reason")), estimate_text(group.get("estimate"))]
    if not said[0] and group.get("yields_in") is not None:
        said.append("yields within {}".format(duration(group["yields_in"])))
    said.append(sleep_text(group))
    return "; ".join(text for text in said if text)


def sleep_text(group: Dict[str, Any]) -> str:
    """What one that is hibernated gives back, and how long it takes to wake it; or why it was left alone."""
    found, state = group.get("hibernation") or {}, group.get("state")
    if state == "hibernated":
        freed, seconds = size(found.get("frees") or 0), found.get("estimate")
        return f"frees {freed}" + (
            "" if seconds is None else f"; about {duration(seconds)} to wake"
        )
    if found.get("state") in ("parking", "hibernating"):
        return "it is being hibernated"
    if found.get("state") == "ordered":
        return "it hibernates once it is idle"
    # What people asked for, they know.
    told = found.get("state") == "refused" and found.get("code") not in ("off", "nothing")
    return "not hibernated: {}".format(found.get("text") or found.get("code")) if told else ""


def hibernation_text(status: Dict[str, Any]) -> str:
    """Why no kernel can be hibernated; nothing where they can be, or nobody has tried."""
    found = status.get("hibernation") or {}
    if found.get("able") is not False:
        return ""
    return "Kernels cannot be hibernated: {}".format(found.get("text") or found.get("code"))


def _holder(given: Dict[str, Any]) -> str:
    return str(given.get("holder_name") or given.get("holder") or "another")


def _within(seconds: Optional[float], otherwise: str) -> str:
    return otherwise if seconds is None else f" within {duration(seconds)}"


def _soon(given: Dict[str, Any]) -> str:
    return _within(given.get("yields_in"), " when its work is over")


def _lacks(given: Dict[str, Any]) -> str:
    # Nothing, where one at a time is to run.
    return "lacks {}; ".format(size(given["lack"])) if given["lack"] else ""


def _for(given: Dict[str, Any]) -> str:
    seconds = given.get("until_in")
    return "" if seconds is None else f" for {duration(seconds)} more at most"


REASONS = {
    "needs_memory": lambda given: (
        f"needs {size(given['need'])}, lacks {size(given['lack'])}; {_holder(given)} yields{_soon(given)}"
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
        f"the kernel {_short(given['kernel'])} of {_holder(given)} has been running for "
        f"{duration(given['kernel_for'])}"
        if given.get("kernel")
        else f"{_holder(given)}'s last GPU work has been ending for {duration(given['for'])}"
    ),
    "stuck": lambda given: (
        f"{_holder(given)} has not given the GPU up for {duration(given['for'])}"
        + (
            f": its kernel {_short(given['kernel'])} has been running for {duration(given['kernel_for'])}"
            if given.get("kernel")
            else ": it was stopped, or its GPU work does not end"
        )
        + "; interrupt or restart it"
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
    "frozen": lambda given: "it is frozen, and waits until somebody unfreezes it",
    "on_hold": lambda given: (
        "an administrator took the GPU from it, and only an administrator can let it go on"
    ),
    "quota_gpus": lambda given: (
        f"{owner(given['whose'])} may use {_gpus(given['gpus'])} at once; "
        + (
            f"it uses {given['own']} by itself: free its memory on the others, or restart it on fewer"
            if given["own"] > given["gpus"]
            else f"{_holder(given)} yields{_soon(given)}"
            if given.get("holder_name")
            else "others of the same user or team come first"
        )
    ),
    "gpu_draining": lambda given: (
        "an administrator wants its GPU empty; it waits until that is over, or restart it on another GPU"
    ),
    "kept": lambda given: (
        f"{_lacks(given)}{_holder(given)} keeps its idle memory on the GPU{_for(given)}"
    ),
    "exclusive": lambda given: (
        f"{_lacks(given)}{_holder(given)} has the GPU for a whole cell{_for(given)}"
    ),
    "limited": lambda given: (
        f"{owner(given['whose'])} has had its limit of the GPU's time; more{_within(given['until_in'], ' later')}"
    ),
    "thrashing": lambda given: (
        f"side by side both were slowed by paging, so they take turns; {_holder(given)} yields{_soon(given)}"
    ),
    "waking": lambda given: (
        "it was hibernated, and is being woken"
        + (f" (about {duration(given['estimate'])} more)" if given.get("estimate") else "")
    ),
    "dying": lambda given: f"{size(given['ghosts'])} of a process that has ended are not free yet",
    "returning": lambda given: (
        f"lacks {size(given['lack'])} until {_processes(given['clients'])} of the previous scheduler "
        f"{'has' if given['clients'] == 1 else 'have'} connected again"
    ),
    "host_memory": lambda given: (
        f"lacks {size(given['lack'])}: the host has too little free memory at the moment; "
        f"the allocation fails{_within(given['until_in'], ' soon')} unless that changes"
    ),
    "restore_failed": lambda given: (
        "its memory could not be moved back to the GPU{} ({}); trying again, nothing is lost".format(
            " (CUDA error {})".format(given["error"]) if given.get("error") else "",
            "1 attempt" if given["attempts"] == 1 else "{} attempts".format(given["attempts"]),
        )
    ),
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]


def owner(whose: Any) -> str:
    """Whose share it is: ``user:ada``, ``team:course``, or that of the one that it is said of."""
    kind, _, name = str(whose).partition(":")
    return f"the {kind} {name}" if kind in ("user", "team") and name else "it"


def _processes(count: Any) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _gpus(count: Any) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _short(text: Any) -> str:
    """The name of a kernel, of which templates make long ones."""
    name = str(text)
    return name if len(name) <= 60 else name[:57] + "..."


def _names(found: Any) -> str:
    names = [str(name) for name in found]
    return names[0] if len(names) == 1 else "{} and {}".format(", ".join(names[:-1]), names[-1])


# Explanations: docs/control.md names their codes. Each is told who is meant, who is before it, and the parameters.

CLASSES = {
    "asked": lambda cls, given: f"{cls}, as somebody asked",
    "fresh_cell": lambda cls, given: (
        f"{cls}: its cell has had less than {duration(given['after'])} of GPU time"
    ),
    "long_cell": lambda cls, given: (
        f"{cls}: its cell has had {duration(given['after'])} of GPU time; the next cell is interactive again"
    ),
    "short_use": lambda cls, given: (
        f"{cls}: it has used the GPU for less than {duration(given['after'])} since it last paused"
    ),
    "long_use": lambda cls, given: (
        f"{cls}: it has used the GPU for {duration(given['after'])}; after a pause it is interactive again"
    ),
}  # type: Dict[str, Callable[[str, Dict[str, Any]], str]]


def _use(given: Dict[str, Any], prefix: str) -> str:
    return "{} has had {}".format(owner(given[prefix + "whose"]), percent(given[prefix + "used"]))


RULES = {
    "came": lambda given: f"came {duration(given['own'] - given['theirs'])} earlier",
    "background": lambda given: (
        f"is interactive; one in the background counts as {duration(given['own'] - given['theirs'])} later"
    ),
    "length": lambda given: (
        "is expected to keep the others waiting for {}, this one for {}: short ones first".format(
            duration(given["theirs"]), duration(given["own"])
        )
    ),
    "focus": lambda given: (
        f"is in front of its user, which counts as {duration(given['own'] - given['theirs'])} earlier"
    ),
    "user_share": lambda given: "comes first by GPU time in the last 10 s: {}, {}{}".format(
        _use(given, "their_"),
        _use(given, ""),
        "; it is guaranteed {}".format(percent(given["their_request"]))
        if given.get("their_request")
        else "",
    ),
    "turn": lambda given: "belongs to a user whose turn was longer ago",
    "share": lambda given: "has had less GPU time in the last 10 s for its share and weight",
    "request": lambda given: "has had less of the GPU time that it is guaranteed",
    "use": lambda given: "has had less GPU time in the last 10 s",
    "class": lambda given: "has the higher priority",
    "weight": lambda given: "has the larger weight",
    "growth": lambda given: "waits in the middle of an allocation",
    "number": lambda given: "came first",
    "retry": lambda given: "has its old place again, since there was no room for it",
    "made_way": lambda given: "is the one that this one had to make way for",
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]

PACES = {
    "paused": lambda given: (
        f"paused while {_names(given['names'])} runs"
        if given["names"]
        else "paused: the others are to have their share first"
    ),
    "bounded": lambda given: "bounded to {} of work at a time{}".format(
        _fine(given["inflight"]),
        f" while {_names(given['names'])} is about" if given["names"] else "",
    ),
    "share": lambda given: f"held to {percent(given['share'])} of the GPU's time",
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]

NEXT = {
    "unfreeze": lambda given: "somebody has to unfreeze it",
    "limit": lambda given: (
        f"{owner(given['whose'])} has to wait{_within(given['until_in'], '')}, or to get a higher limit"
    ),
    "administrator": lambda given: "an administrator has to let it go on",
    "quota": lambda given: (
        f"{owner(given['whose'])} has to use a GPU less, or to get more than {_gpus(given['gpus'])}"
    ),
    "room": lambda given: "it is next: it only waits for what is said above",
    "interactive": lambda given: (
        "make it interactive, or begin a new cell, and it no longer counts as later"
    ),
    "focus": lambda given: "bring it to the front in the browser",
    "use": lambda given: f"it has to wait until {given['ahead']} has had as much for its share",
    "served": lambda given: (
        f"{given['ahead']} has to be served before it"
        if given["count"] == 1
        else f"{given['count']} have to be served before it, {given['ahead']} first"
    ),
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]


def _worded(
    words: Dict[str, Callable[..., str]], found: Optional[Dict[str, Any]], *more: Any
) -> str:
    """Word a code with its parameters; a code of a newer scheduler stays a code."""
    if not found:
        return ""
    code = str(found.get("code", ""))
    try:
        return words[code](*more, found.get("params", {}))
    except (KeyError, TypeError, ValueError, IndexError):
        return code.replace("_", " ")


def explanation_lines(explanation: Dict[str, Any]) -> List[str]:
    """What ``explain`` answers, a line for each thing."""
    lines = []  # type: List[str]
    for group in explanation.get("groups", []):
        reason, pace = reason_text(group.get("reason")), _worded(PACES, group.get("pace"))
        if group.get("waited") is not None:
            head = "waits for {}".format(duration(group["waited"]))
        else:
            head = str(group.get("state"))
        said = [text for text in (reason, pace) if text]
        name = str(group.get("name") or group.get("group"))
        lines.append("{} {}".format(name, ": ".join([head, "; ".join(said)]) if said else head))
        lines.append(
            "  " + _worded(CLASSES, group.get("why_class"), str(group.get("class") or "class"))
        )
        for place, other in enumerate(group.get("before", []), start=1):
            lines.append(
                "  {}. {} {}".format(
                    place, other.get("name") or other.get("group"), _worded(RULES, other)
                )
            )
        if group.get("next"):
            lines.append("  to be served: " + _worded(NEXT, group["next"]))
    return lines or ["Nobody waits for the GPU, and nobody is held back."]


def percent(fraction: float) -> str:
    """A fraction in words: ``25 %``."""
    return f"{round(100 * fraction, 1):g} %"


def _fine(seconds: float) -> str:
    return f"{1000 * seconds:g} ms" if seconds < 1 else duration(seconds)


def size(amount: float) -> str:
    """Bytes in words: ``5.2 GiB``."""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
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
    hint = OutOfMemoryHint(shell)
    if cells is not None:
        cells.install()
    else:
        hint.install()
    magic = Magic(shell, interposer, cells)
    shell.register_magic_function(magic, "line_cell", "gpushare")
    # IPython 7 and newer.
    if hasattr(shell, "input_transformers_cleanup"):
        shell.input_transformers_cleanup.append(exclusive_cell)
    _install_completion(shell, magic)
    _note_as_loaded(shell)
    shell._gpushare = (interposer, cells, hint)


def offer(shell: Any) -> None:
    """Load this part into an IPython that starts, unless the provisioner has it load its own version."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    if "_gpushare_in_kernel" not in getattr(app, "code_to_run", ""):
        load(shell)


@guarded
def _note_as_loaded(shell: Any) -> None:
    """Let ``%load_ext jupyter_gpushare`` succeed in an environment where the package is not installed."""
    if importlib.util.find_spec("jupyter_gpushare") is None:
        shell.extension_manager.loaded.add("jupyter_gpushare")


@guarded
def _install_completion(shell: Any, magic: Magic) -> None:
    try:
        # IPython 8.6 and newer: nothing else is offered then, such as Jedi's keywords.
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        shell.set_hook(
            "complete_command",
            lambda _, event: magic.complete(event.text_until_cursor),
            re_key=COMPLETED,
        )
        return

    def complete(context: Any) -> Dict[str, Any]:
        words = magic.complete(context.text_until_cursor)
        fitting = [word for word in words if word.startswith(context.token)]
        return {
            "completions": [SimpleCompletion(word) for word in fitting],
            "suppress": bool(words),
            "ordered": True,
        }

    as_matcher = context_matcher(identifier="gpushare")  # type: ignore[no-untyped-call,unused-ignore]
    shell.Completer.custom_matchers.append(as_matcher(complete))


def _remove_completion(shell: Any) -> None:
    completer = shell.Completer
    if hasattr(completer, "custom_matchers"):
        completer.custom_matchers = [
            matcher
            for matcher in completer.custom_matchers
            if getattr(matcher, "matcher_identifier", "") != "gpushare"
        ]
    else:
        shell.strdispatchers["complete_command"].regexs.pop(re.compile(COMPLETED), None)


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
    loaded = getattr(shell, "_gpushare", None)
    if loaded is None:
        return
    _, cells, hint = loaded
    if cells is not None:
        cells.remove()
    else:
        hint.remove()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpushare", None)
    _remove_completion(shell)
    transformers = getattr(shell, "input_transformers_cleanup", [])
    # By name: another copy of this file may have been loaded.
    transformers[:] = [t for t in transformers if getattr(t, "__name__", "") != "exclusive_cell"]
    shell._gpushare = None
