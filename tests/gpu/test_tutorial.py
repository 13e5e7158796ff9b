# SPDX-License-Identifier: BSD-3-Clause
"""The PyTorch tutorial's page has cells that can run; ``python -m tests.gpu.tutorial`` runs them on a GPU."""

from __future__ import annotations

import ast

from .tutorial import PAGE, Step, steps_of


def test_each_cell_is_python_and_has_an_output() -> None:
    steps = steps_of(PAGE.read_text(encoding="utf-8"))
    assert {step.notebook for step in steps} == {"train", "explore"}
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(steps)
    for step in steps:
        if not step.code.startswith("%"):
            ast.parse(step.code)


def test_an_output_may_differ_only_where_the_page_allows_it() -> None:
    step = Step("train", False, "", "60% of …\nGPU 0")
    assert step.matches("60% of 139.8 GiB\n   GPU 0\n")
    assert not step.matches("61% of 139.8 GiB\nGPU 0\n")
