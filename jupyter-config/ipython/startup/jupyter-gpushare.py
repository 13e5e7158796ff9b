# SPDX-License-Identifier: BSD-3-Clause
# IPython runs this file in the namespace of the user, so that it must define no name, and no docstring either.
try:
    __import__("jupyter_gpushare").offer_magic(get_ipython())  # noqa: F821
except Exception:
    __import__("logging").getLogger("gpushare").debug("%%gpushare is not available", exc_info=True)
