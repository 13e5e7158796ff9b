# SPDX-License-Identifier: BSD-3-Clause
"""What the programs for PyTorch share: deterministic settings, a model, memory that is merely held, digests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Read when cuBLAS is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import step

torch = step.load("torch")
step.load("numpy")

BLOCK = 32 << 20


def begin(seed: int = 0) -> tuple[Any, Any]:
    """Make PyTorch deterministic; return the arguments and the device."""
    args = step.arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        step.absent("PyTorch sees no GPU")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return args, torch.device(args.device)


def raw(tensor: Any) -> Any:
    """Return a tensor's bytes on the host."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).cpu().numpy()


class Held:
    """Blocks of integers, as large as the work around them, that each step changes a little.

    A digest takes their sum as integers and a sample: exact, and quick for gigabytes.
    """

    def __init__(self, device: Any, size: int) -> None:
        size = size if device.type == "cuda" else size // 64
        words = min(BLOCK, size) // 4
        self.blocks = [
            torch.arange(words, dtype=torch.int32, device=device).mul_(2654435761 % 2**31 + index)
            for index in range(max(1, size // (4 * words)))
        ]

    def step(self, index: int) -> None:
        """Change all of one block and a word of each."""
        block = self.blocks[index % len(self.blocks)]
        block.mul_(1664525).add_(1013904223)
        for other in self.blocks:
            other[index] += block[-1 - index]

    def state(self) -> Iterator[Any]:
        """Return what is to be digested."""
        for block in self.blocks:
            yield raw(block.sum(dtype=torch.int64))
            yield raw(block[:: 1 << 10])


class Block(torch.nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.after = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        """Attend, then think."""
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        # Written out: the fused kernels' backward is not deterministic on every GPU.
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.after(x)))))


class Transformer(torch.nn.Module):
    """A small language model."""

    def __init__(
        self, words: int = 1000, width: int = 256, layers: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, 4, dropout) for _ in range(layers))
        self.head = torch.nn.Linear(width, words)
        #: Wraps each layer; checkpointing sets it.
        self.wrap: Callable[[Any, Any], Any] = lambda block, x: block(x)

    def forward(self, tokens: Any) -> Any:
        """Return the logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.wrap(block, x)
        return self.head(x)


def tokens(device: Any, batch: int = 16, length: int = 128, words: int = 1000) -> tuple[Any, Any]:
    """Draw a batch of inputs and targets on the device."""
    if device.type == "cpu":
        batch, length = 2, 16
    drawn = torch.randint(words, (batch, length + 1), device=device)
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(logits: Any, targets: Any) -> Any:
    """Return the cross-entropy, over one dimension: that of two has no deterministic backward."""
    return torch.nn.functional.cross_entropy(
        logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1)
    )


def state_of(device: Any, *modules: Any, extra: Iterable[Any] = ()) -> Iterator[Any]:
    """Return the parameters and buffers of modules, further tensors, and the random generators' state."""
    for module in modules:
        for tensor in module.state_dict().values():
            yield raw(tensor)
    for tensor in extra:
        yield raw(tensor)
    yield raw(torch.get_rng_state())
    if device.type == "cuda":
        yield raw(torch.cuda.get_rng_state(device))


def moments(optimizer: Any) -> Iterator[Any]:
    """Return the tensors of an optimizer's state."""
    for entry in optimizer.state.values():
        for value in entry.values():
            if torch.is_tensor(value):
                yield value


def train_eagerly(seed: int, wrap: Callable[[Any, Any], Any] | None = None) -> None:
    """Train the transformer with Adam, beside 256 MiB that are held; allocate and free odd sizes meanwhile."""
    args, device = begin(seed)
    model = Transformer().to(device)
    if wrap is not None:
        model.wrap = wrap
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held = Held(device, 256 << 20)
    kept: list[Any] = []

    def step_(index: int) -> None:
        for _ in range(4):
            inputs, targets = tokens(device)
            loss = loss_of(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held.step(index)
        # Sizes that no cached block fits: the allocator asks the driver, also between steps without a lease.
        kept.append(torch.randn((index + 1) * 300_007, device=device))
        while len(kept) > 4:
            kept.pop(0)
        if index % 3 == 2 and device.type == "cuda":
            torch.cuda.empty_cache()
        kept.append(kept[-1].sort().values[: 1 << 16].clone())

    def state() -> Iterator[Any]:
        yield from state_of(device, model, extra=[*moments(optimizer), *kept])
        yield from held.state()

    step.run(args.steps, step_, state)
