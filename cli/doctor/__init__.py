# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare doctor``, and the checks that it runs in processes of their own."""
