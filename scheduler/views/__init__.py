# SPDX-License-Identifier: BSD-3-Clause
"""Views of the core: its status, explanations, estimates and timeline."""
