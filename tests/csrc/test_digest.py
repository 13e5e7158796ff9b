# SPDX-License-Identifier: BSD-3-Clause
"""The digest of a unit of data: its definition in C against one in Python, and the CUDA kernel's source."""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

UNIT = 2 << 20
SLICE = UNIT // 4
PRIME = (1 << 61) - 1
#: Lengths in bytes around the borders of vectors, rows of lanes and slices.
LENGTHS = [16, 4080, 4096, 4112, SLICE - 16, SLICE, SLICE + 4112, UNIT - 16, UNIT]
SEED = bytes(range(32))


def quarter(x: list[int], a: int, b: int, c: int, d: int) -> None:
    for to, source, other, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[to] = (x[to] + x[source]) & 0xFFFFFFFF
        mixed = x[other] ^ x[to]
        x[other] = (mixed << bits | mixed >> (32 - bits)) & 0xFFFFFFFF


def chacha20(key: bytes, counter: int) -> bytes:
    """Return a block of RFC 8439, with a nonce of zero."""
    first = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        0,
        0,
        0,
    ]
    x = list(first)
    for _ in range(10):
        for columns in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            quarter(x, *columns)
        for diagonals in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(x, *diagonals)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, first, strict=True)))


class SlowDigest:
    """The digest, word by word."""

    def __init__(self, seed: bytes) -> None:
        stream = b"".join(chacha20(seed, i) for i in range(1058))
        vectors, lanes, lengths = 131 * 4, 4 * 4 * 2 * 256, 4
        layout = struct.Struct(f"<{vectors}I{lanes + lengths}Q")
        numbers = layout.unpack_from(stream)
        self.vectors = numbers[:vectors]
        self.lanes = [number & PRIME for number in numbers[vectors : vectors + lanes]]
        self.lengths = [number & PRIME for number in numbers[vectors + lanes :]]

    def nh(self, words: list[int], shift: int) -> int:
        total = 0
        for i in range(0, len(words), 2):
            a = (words[i] + self.vectors[i + shift]) & 0xFFFFFFFF
            b = (words[i + 1] + self.vectors[i + 1 + shift]) & 0xFFFFFFFF
            total += a * b
        return total & 0xFFFFFFFFFFFFFFFF

    def __call__(self, data: bytes) -> list[int]:
        digest = [length * len(data) for length in self.lengths]
        for start in range(0, len(data), SLICE):
            words = struct.unpack_from(f"<{min(SLICE, len(data) - start) // 4}I", data, start)
            for lane in range(256):
                own = [word for i in range(4 * lane, len(words), 1024) for word in words[i : i + 4]]
                for p in range(4):
                    total = self.nh(own, 4 * p)
                    at = ((start // SLICE * 4 + p) * 2) * 256 + lane
                    digest[p] += self.lanes[at] * (total & 0xFFFFFFFF)
                    digest[p] += self.lanes[at + 256] * (total >> 32)
        return [*(word % PRIME for word in digest), int(any(data))]


class FastDigest:
    """The definition in C."""

    def __init__(self, library: ctypes.CDLL, seed: bytes) -> None:
        library.key_bytes.restype = ctypes.c_size_t
        self.library = library
        self.key = ctypes.create_string_buffer(library.key_bytes())
        library.derive(self.key, seed)

    def __call__(self, data: bytes | bytearray) -> list[int]:
        words = (ctypes.c_uint64 * 5)()
        self.library.digest(self.key, bytes(data), ctypes.c_size_t(len(data)), words)
        return list(words)


Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def library(compile_c: Compile, root: Path) -> ctypes.CDLL:
    return ctypes.CDLL(
        str(compile_c("digest.c", "digest.so", "-O2", "-shared", "-fPIC", f"-I{root / 'csrc'}"))
    )


@pytest.fixture(scope="module")
def fast(library: ctypes.CDLL) -> FastDigest:
    return FastDigest(library, SEED)


@pytest.fixture(scope="module")
def slow() -> SlowDigest:
    return SlowDigest(SEED)


def test_the_key_stream_is_that_of_rfc_8439(library: ctypes.CDLL) -> None:
    """Test vectors 1 and 3 of its appendix A.1."""
    for key, counter, begin in (
        (bytes(32), 0, "76b8e0ada0f13d90405d6ae55386bd28"),
        (bytes(31) + b"\x01", 1, "3aeb5224ecf849929b9d828db1ced4dd"),
    ):
        block = ctypes.create_string_buffer(64)
        library.chacha20(key, counter, block)
        assert block.raw.hex().startswith(begin)
        assert block.raw == chacha20(key, counter)


@settings(max_examples=60, deadline=None)
@given(
    vectors=st.integers(1, 700),
    seed=st.integers(0, 1000),
    fill=st.sampled_from(["random", "sparse", "ones"]),
)
def test_short_units_agree_with_the_slow_definition(
    fast: FastDigest, slow: SlowDigest, vectors: int, seed: int, fill: str
) -> None:
    draw = random.Random(seed)
    data = bytearray(draw.randbytes(16 * vectors)) if fill == "random" else bytearray(16 * vectors)
    if fill == "ones":
        data = bytearray(b"\xff" * len(data))
    elif fill == "sparse":
        data[draw.randrange(len(data))] = draw.randrange(256)
    assert fast(data) == slow(bytes(data))


@pytest.mark.parametrize("length", LENGTHS)
def test_whole_units_agree_with_the_slow_definition(
    fast: FastDigest, slow: SlowDigest, length: int
) -> None:
    data = random.Random(length).randbytes(length)
    assert fast(data) == slow(data)


@settings(max_examples=20, deadline=None)
@given(vector=st.integers(0, UNIT // 16 - 1))
def test_every_bit_of_a_vector_changes_every_word(fast: FastDigest, vector: int) -> None:
    data = bytearray(random.Random(5).randbytes(UNIT))
    seen = [fast(data)]
    for bit in random.Random(vector).sample(range(128), 16):
        data[16 * vector + bit // 8] ^= 1 << bit % 8
        seen.append(fast(data))
        data[16 * vector + bit // 8] ^= 1 << bit % 8
    for words in zip(*(digest[:4] for digest in seen), strict=True):
        assert len(set(words)) == len(seen)


@settings(max_examples=40, deadline=None)
@given(bit=st.integers(0, 8 * UNIT - 1))
def test_one_bit_makes_a_unit_not_zero(fast: FastDigest, bit: int) -> None:
    data = bytearray(UNIT)
    assert fast(data)[4] == 0
    data[bit // 8] = 1 << bit % 8
    assert fast(data)[4] == 1


def test_the_length_is_part_of_the_digest(fast: FastDigest) -> None:
    """A shorter unit is not taken for one with zeros at its end."""
    seen = [fast(bytes(length)) for length in LENGTHS]
    for words in list(zip(*seen, strict=True))[:4]:
        assert len(set(words)) == len(LENGTHS)


def test_the_seed_decides_on_the_digest(library: ctypes.CDLL) -> None:
    data = random.Random(1).randbytes(UNIT)
    seen = [FastDigest(library, bytes([seed]) * 32)(data) for seed in range(8)]
    assert len({word for digest in seen for word in digest[:4]}) == 32
    assert all(word < PRIME for digest in seen for word in digest)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, root: Path) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("kernel") / "kernel.so"
    flags = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror", "-pthread")
    source = Path(__file__).with_name("digest_kernel.cpp")
    command = ["g++", *flags, "-shared", "-fPIC", f"-I{root / 'csrc'}", "-o"]
    subprocess.run([*command, str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("length", [*LENGTHS, 3 * UNIT - 4112])
def test_the_source_of_the_cuda_kernel_agrees_with_the_definition(
    kernel: ctypes.CDLL, fast: FastDigest, length: int
) -> None:
    data = random.Random(length).randbytes(length)
    units = [data[at : at + UNIT] for at in range(0, length, UNIT)]
    slices = (ctypes.c_uint64 * 5 * 4 * len(units))()
    kernel.run(fast.key, data, ctypes.c_size_t(length), slices)
    lengths = struct.unpack("<4Q", fast.key.raw[-32:])
    for unit, parts in zip(units, slices, strict=True):
        words = [
            (lengths[p] * len(unit) + sum(part[p] for part in parts)) % PRIME for p in range(4)
        ]
        assert [*words, max(part[4] for part in parts)] == fast(unit)


def test_the_ptx_was_compiled_from_the_source(root: Path) -> None:
    """Run tools/compile_digest.py after each change of digest.cu."""
    folder = root / "csrc/interposer/memory"
    header, *code = (folder / "digest.ptx").read_text().splitlines()
    source = hashlib.sha256((folder / "digest.cu").read_bytes()).hexdigest()
    assert header == f"// gpushare-digest 1, made of digest.cu with SHA-256 {source}"
    # Drivers from R450 on read this version; all GPUs that they support are at least of this target.
    assert code[:3] == [".version 7.0", ".target sm_52", ".address_size 64"]
    visible = [line for line in code if line.startswith(".visible")]
    assert [re.findall(r"gpushare_digest\w*", line) for line in visible] == [
        ["gpushare_digest_vectors"],
        ["gpushare_digest_lanes"],
        ["gpushare_digest"],
    ]
