# SPDX-License-Identifier: BSD-3-Clause
"""Commands for administrators of shared machines."""
