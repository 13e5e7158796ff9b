# SPDX-License-Identifier: BSD-3-Clause
"""What tests of several folders use."""
