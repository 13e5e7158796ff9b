# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of the core: its status, explanations, estimates and timeline."""
