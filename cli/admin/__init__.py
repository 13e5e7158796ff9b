# SPDX-License-Identifier: BSD-3-Clause
"""Commands for administrators, and for the machines that they look after."""
