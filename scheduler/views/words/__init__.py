# SPDX-License-Identifier: BSD-3-Clause
"""English sentences for what the scheduler says in codes (``control.md``); no other Python module has them.

They are made from codes and parameters when a viewer asks (``answers``), after ``redaction`` has removed what the
viewer must not see. The Lab has words of its own, which can be translated.
"""
