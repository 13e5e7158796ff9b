# SPDX-License-Identifier: BSD-3-Clause
"""What the programs for JAX share. Unified (managed) memory is never used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import step

#: Of the GPU: with preallocation, what JAX takes at once.
SHARE = "0.01"


def train(preallocate: bool) -> None:
    """Train a network with XLA, with momentum and noise, beside 256 MiB that are held."""
    args = step.arguments()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if preallocate else "false"
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = SHARE
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    os.environ["JAX_PLATFORMS"] = args.device
    jax = step.load("jax")
    jnp = step.load("jax.numpy")
    numpy = step.load("numpy")
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        step.absent(f"JAX has no such device: {error}")
    width, batch = (2048, 512) if args.device == "cuda" else (64, 8)

    def forward(weights: Any, x: Any, key: Any) -> Any:
        for index, layer in enumerate(weights):
            noise = jax.random.bernoulli(jax.random.fold_in(key, index), 0.9, x.shape)
            x = jnp.tanh(x @ layer) * noise
        return x

    def loss(weights: Any, x: Any, y: Any, key: Any) -> Any:
        return jnp.mean((forward(weights, x, key) - y) ** 2)

    @jax.jit
    def update(weights: Any, momentum: Any, key: Any) -> Any:
        key, one, two, three = jax.random.split(key, 4)
        x = jax.random.normal(one, (batch, width))
        y = jnp.sort(jax.random.normal(two, (batch, width)), axis=1)
        value, gradients = jax.value_and_grad(loss)(weights, x, y, three)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return weights, momentum, key, value

    @jax.jit
    def stir(block: Any) -> Any:
        return block * jnp.uint32(1664525) + jnp.cumsum(block[:1024]).sum()

    key = jax.random.key(3)
    weights = [
        jax.random.normal(jax.random.fold_in(key, i), (width, width)) / width**0.5 for i in range(4)
    ]
    momentum = jax.tree.map(jnp.zeros_like, weights)
    words = (8 << 20) if args.device == "cuda" else 1 << 16
    held = [jnp.arange(words, dtype=jnp.uint32) + i for i in range(8)]
    value = jnp.zeros(())

    def work(index: int) -> None:
        nonlocal weights, momentum, key, value
        for _ in range(10):
            weights, momentum, key, value = update(weights, momentum, key)
        held[index % len(held)] = stir(held[index % len(held)])

    def state() -> Iterator[Any]:
        for array in (*weights, momentum[-1], value, jax.random.key_data(key)):
            yield numpy.asarray(array).tobytes()
        for block in held:
            yield numpy.asarray(block.sum()).tobytes()
            yield numpy.asarray(block[::1024]).tobytes()

    step.run(args.steps, work, state)
