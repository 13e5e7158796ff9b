# SPDX-License-Identifier: BSD-3-Clause
"""Commands that let programs and front ends of all kinds share."""
