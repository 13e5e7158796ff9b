# SPDX-License-Identifier: BSD-3-Clause
"""Commands that record, replay and simulate scheduling."""
