# SPDX-License-Identifier: BSD-3-Clause
"""Commands that change what becomes of a notebook, a user or all of them."""
