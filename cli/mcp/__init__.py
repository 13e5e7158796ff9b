# SPDX-License-Identifier: BSD-3-Clause
"""The MCP server: the command, and the tools."""
