# SPDX-License-Identifier: BSD-3-Clause
"""The parts of ``generate.py``, which makes the interposer's tables, stubs and wrappers."""
