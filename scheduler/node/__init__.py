# SPDX-License-Identifier: BSD-3-Clause
"""A node that several users share: configuration, who is who, and what each may do."""
