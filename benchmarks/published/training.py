# SPDX-License-Identifier: BSD-3-Clause
"""The cost of a step with sharing, while no other program wants the GPU, compared with one without.

Steps are those of training, and of a language model that generates text: one token each, by a CUDA graph.

Two processes live for the whole time, one without us and one under the interposer with a scheduler of its own. Only one
computes at a time. Blocks of steps alternate, and which of the two begins a pair alternates too::

    python -m jupyter_gpushare.benchmarks.published.training --pairs 20

``--peer LIBRARY.so`` adds a third process with that library preloaded instead of ours. Needs PyTorch and a real GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...scheduler.node.arguments import Parser
from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, machine

MODELS = ("transformer", "cnn", "decode")
PAIRS = 20
#: Seconds of one block of steps, and of steps before the first block is timed.
BLOCK, WARM_UP = 0.7, 3.0
#: Steps without a clock at the start of each block: the GPU comes out of its rest.
RUN_UP = 3
TARGET = 0.1
RESAMPLES = 10_000


# --- In the processes that train ------------------------------------------------------------------


def _transformer(torch: Any, device: Any, batch: int = 32) -> Callable[[], None]:
    """Return the step of a small GPT in bf16: some 12 layers of launches."""
    functional = torch.nn.functional
    nn: Any = torch.nn
    module: Any = nn.Module
    small = device.type == "cpu"
    width, heads, layers, words = (64, 4, 2, 512) if small else (768, 12, 12, 32000)
    batch, length = (2, 32) if small else (batch, 512)

    class Layer(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.before(x)).view(batch, length, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.after(x))))

    model = nn.Sequential(
        nn.Embedding(words, width), *(Layer() for _ in range(layers)), nn.Linear(width, words)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = torch.randint(words, (8, batch, length + 1), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        text = texts[turn % len(texts)]
        turn += 1
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _cnn(torch: Any, device: Any) -> Callable[[], None]:
    """Return the step of a ResNet-50 in bf16; of a smaller network of that kind without torchvision."""
    nn = torch.nn
    small = device.type == "cpu"
    batch, size = (2, 32) if small else (256, 224)
    if importlib.util.find_spec("torchvision") is not None and not small:
        models = importlib.import_module("torchvision.models")
        model = models.resnet50(weights=None, num_classes=1000)
    else:
        layers: list[Any] = []
        for before, after in ((3, 64), (64, 128), (128, 256), (256, 512), (512, 512)):
            for channels, stride in ((before, 2), (after, 1), (after, 1)):
                layers += [
                    nn.Conv2d(channels, after, 3, stride, 1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.ReLU(inplace=True),
                ]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
        model = nn.Sequential(*layers)
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pictures = torch.randn(batch, 3, size, size, device=device)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _decode(torch: Any, device: Any) -> Callable[[], None]:
    """Return the step of a language model of a billion parameters in bf16 that generates text.

    A step is the replay of one CUDA graph, after which the program reads the tokens, as if to print them.
    """
    functional = torch.nn.functional
    nn: Any = torch.nn
    module: Any = nn.Module
    small = device.type == "cpu"
    width, heads, layers, words = (64, 4, 2, 512) if small else (2048, 16, 20, 32000)
    batch, length = (2, 32) if small else (8, 1024)
    # Where the cache of keys and values gets those of the next token; at its end, the oldest ones are overwritten.
    place = torch.zeros(1, dtype=torch.int64, device=device)

    class Layer(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            shape = batch, heads, length, width // heads
            self.register_buffer("keys", torch.zeros(shape))
            self.register_buffer("values", torch.zeros(shape))

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.before(x)).view(batch, 1, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            self.keys.index_copy_(2, place, key)
            self.values.index_copy_(2, place, value)
            mixed = functional.scaled_dot_product_attention(query, self.keys, self.values)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, 1, width))
            return x + self.down(functional.gelu(self.up(self.after(x))))

    with device:
        model = nn.Sequential(
            nn.Embedding(words, width), *(Layer() for _ in range(layers)), nn.Linear(width, words)
        )
    model.to(torch.bfloat16).requires_grad_(False)
    token = torch.zeros((batch, 1), dtype=torch.int64, device=device)

    def generate() -> None:
        token.copy_(model(token).argmax(-1))
        place.add_(1).remainder_(length)

    replay = generate if small else _captured(torch, generate)

    def step() -> None:
        replay()
        token.tolist()

    return step


def _captured(torch: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Return the replay of a CUDA graph that does this work."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


_STEPS: dict[str, Callable[[Any, Any], Callable[[], None]]] = {
    "transformer": _transformer,
    "cnn": _cnn,
    "decode": _decode,
}


def train(device: str) -> int:
    """Carry out the commands that come in as lines: a model's name, or a number of steps to time."""
    import torch

    # The choice of algorithms must not depend on what a process measured when it began.
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    here = torch.device(device)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    step: Callable[[], None] = lambda: None  # noqa: E731
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word in MODELS:
            step = _STEPS[word](torch, here)
            print("made", flush=True)
            continue
        for _ in range(RUN_UP):
            step()
        wait()
        start = time.perf_counter()
        for _ in range(int(word)):
            step()
        wait()
        print((time.perf_counter() - start) / int(word), flush=True)
    return 0


class Trainer:
    """A process that trains when told to."""

    def __init__(self, environ: Mapping[str, str], device: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyter_gpushare.benchmarks.published.training",
                "--train",
                device,
            ],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def read(self) -> str:
        """Return the next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that trains ended with status {self.process.wait()}")
        return line.strip()

    def call(self, command: object) -> str:
        """Carry out a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        return self.read()

    def step_time(self, steps: int) -> float:
        """Return the average seconds of a step, over this number of steps."""
        return float(self.call(steps))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


# --- Measuring ------------------------------------------------------------------------------------


def interval(values: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def measure(
    trainers: Mapping[str, Trainer], model: str, pairs: int, block: float, warm_up: float
) -> dict[str, list[float]]:
    """Return the seconds of a step in each block, by trainer; they take turns in either order."""
    for trainer in trainers.values():
        trainer.call(model)
    first = next(iter(trainers.values()))
    steps = max(1, round(block / first.step_time(5)))
    for trainer in trainers.values():
        begun = time.perf_counter()
        while time.perf_counter() - begun < warm_up:
            steps = max(1, round(block / trainer.step_time(steps)))
    steps = max(1, round(block / first.step_time(steps)))
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for pair in range(pairs):
        order = list(trainers)
        for name in order if pair % 2 == 0 else reversed(order):
            times[name].append(trainers[name].step_time(steps))
    return times


def _figures(model: str, name: str, times: dict[str, list[float]]) -> Iterator[Figure]:
    slower = [
        100 * (mine / bare - 1) for mine, bare in zip(times[name], times["plain"], strict=True)
    ]
    low, high = interval(slower)
    target = TARGET if name == "ours" else None
    what = "gpushare" if name == "ours" else name
    yield Figure(
        "training",
        f"{model} step with {what}, slower by [{low:+.2f}, {high:+.2f}]",
        statistics.median(slower),
        "%",
        None,
        len(slower),
        quartile_distance(slower),
        target,
    )
    yield Figure(
        "training",
        f"{model} step with {what}",
        1000 * statistics.median(times[name]),
        "ms",
        1000 * statistics.median(times["plain"]),
        len(slower),
        1000 * quartile_distance(times[name]),
    )


def results(
    *,
    models: Sequence[str] = MODELS,
    pairs: int = PAIRS,
    block: float = BLOCK,
    warm_up: float = WARM_UP,
    peer: Path | None = None,
    device: str = "cuda",
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield each model's times."""
    with machine(whole=True) as here, contextlib.ExitStack() as stack:
        environs = {"plain": here.bare_environ(), "ours": here.client_environ("training")}
        if peer is not None:
            before = environs["plain"].get("LD_PRELOAD")
            preload = ":".join(filter(None, [str(peer), before]))
            environs[peer.stem] = {**environs["plain"], "LD_PRELOAD": preload}
        trainers: dict[str, Trainer] = {}
        for name, environ in environs.items():
            trainers[name] = Trainer(environ, device)
            stack.callback(trainers[name].close)
        for trainer in trainers.values():
            trainer.read()
        for model in models:
            times = measure(trainers, model, pairs, block, warm_up)
            if device == "cuda" and not _holds_memory(here):
                raise RuntimeError("the process that was to train under us did not attach")
            yield model, times


def _holds_memory(here: Machine) -> bool:
    status: Any = here.control("status")["status"]
    return any(gpu["footprint"] for group in status["groups"] for gpu in group["gpus"])


def run(pairs: int = PAIRS) -> Iterator[Figure]:
    """Measure all models."""
    with machine(scheduler=False) as here:
        simulated = here.driver.simulated
    if simulated or importlib.util.find_spec("torch") is None:
        print("training: not measured, it needs PyTorch and a real GPU", file=sys.stderr)
        return
    for model, times in results(pairs=pairs):
        yield from _figures(model, "ours", times)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m jupyter_gpushare.benchmarks.published.training",
        description="Time training steps without us and under us, alternating.",
    )
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"pairs of blocks a model (default: {PAIRS})"
    )
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="which; repeatable (default: all)"
    )
    parser.add_argument(
        "--block", type=float, default=BLOCK, metavar="S", help=f"seconds a block ({BLOCK})"
    )
    parser.add_argument(
        "--warm-up", type=float, default=WARM_UP, metavar="S", help=f"seconds before ({WARM_UP})"
    )
    parser.add_argument(
        "--peer", type=Path, metavar="LIBRARY", help="also time it with this library preloaded"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a model")
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu only tries the benchmark out"
    )
    parser.add_argument("--train", choices=["cuda", "cpu"], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.pairs < 2 or args.block <= 0 or args.warm_up < 0:
        parser.error("--pairs is at least 2, --block above 0, --warm-up at least 0")
    if args.peer is not None and not args.peer.is_file():
        parser.error(f"--peer names {args.peer}, which is not a file")
    return args


def _print(model: str, times: dict[str, list[float]], as_json: bool) -> None:
    for name in list(times)[1:]:
        ratios = [mine / bare for mine, bare in zip(times[name], times["plain"], strict=True)]
        low, high = interval(ratios)
        if as_json:
            found = {
                "bench": "training",
                "model": model,
                "under": name,
                "pairs": len(ratios),
                "plain_ms": [round(1000 * value, 4) for value in times["plain"]],
                "ms": [round(1000 * value, 4) for value in times[name]],
                "slower_percent": round(100 * (statistics.median(ratios) - 1), 3),
                "interval_percent": [round(100 * (end - 1), 3) for end in (low, high)],
            }
            print(json.dumps(found), flush=True)
            continue
        print(f"{model} under {name}, {len(ratios)} pairs:")
        for bare, mine, ratio in zip(times["plain"], times[name], ratios, strict=True):
            print(f"  {1000 * bare:9.3f} ms  {1000 * mine:9.3f} ms  {ratio:.4f}")
        print(
            f"  median {100 * (statistics.median(ratios) - 1):+.2f}% "
            f"(95%: {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f})",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Measure and print every pair."""
    args = _arguments(argv)
    if args.train:
        return train(args.train)
    if importlib.util.find_spec("torch") is None:
        print("gpushare: this needs PyTorch; install torch", file=sys.stderr)
        return 2
    if args.device == "cuda" and not Path("/dev/nvidiactl").exists():
        print("gpushare: this needs a real NVIDIA GPU, and there is none here", file=sys.stderr)
        return 2
    peer = None if args.peer is None else Path(os.path.abspath(args.peer))
    for model, times in results(
        models=args.model or MODELS,
        pairs=args.pairs,
        block=args.block,
        warm_up=args.warm_up,
        peer=peer,
        device=args.device,
    ):
        _print(model, times, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
