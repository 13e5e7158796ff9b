# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare doctor``, and what it starts."""
