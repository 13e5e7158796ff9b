# SPDX-License-Identifier: BSD-3-Clause
"""Moves host memory of idle notebooks to a local disk, and back."""
