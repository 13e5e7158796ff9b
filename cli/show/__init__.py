# SPDX-License-Identifier: BSD-3-Clause
"""Commands that show how the GPUs are used."""
