# SPDX-License-Identifier: BSD-3-Clause
"""Commands about the scheduler in virtual time, and about what it was given."""
