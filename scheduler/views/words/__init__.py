# SPDX-License-Identifier: BSD-3-Clause
"""English sentences for the scheduler's codes (docs/reference/control.md); no other Python module has them.

They are made from codes and parameters when a viewer asks for them (``answers``), after ``redaction`` has removed what
the viewer must not see. The JupyterLab extension has its own sentences, because those can be translated.
"""
