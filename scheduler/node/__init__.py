# SPDX-License-Identifier: BSD-3-Clause
"""A node that several users share: configuration, identities and permissions."""
