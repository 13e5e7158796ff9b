# SPDX-License-Identifier: BSD-3-Clause
"""Asks a JupyterHub for the user of a token, in a thread, so that other users never wait for the Hub or its faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ..protocol.text import printable
from .principals import Principal

#: Seconds that the Hub has for its answer, fewer than a control client waits for its own answer.
PATIENCE = 4.0
#: Seconds in which the thread must end.
LINGER = 0.25
#: The longest token.
LONGEST = 1024
#: Scopes that make the owner of a token an administrator, or let them see everything. Being the Hub's admin does not.
ADMIN, READ = "custom:gpushare:admin", "custom:gpushare:read"


class LoginError(Exception):
    """A token is not valid. The message is the sentence for its owner.

    Parameters
    ----------
    code
        The code for programs: ``bad_token``; ``hub_unreachable`` or ``unknown_claim`` if it makes sense to try again.
    text
        The text for users.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Hub:
    """A JupyterHub that returns the user of a token, through its own client (the extra ``jupyterhub``).

    Parameters
    ----------
    url
        The URL of its API, as in ``JUPYTERHUB_API_URL``.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._auth: Future[Any] = Future()
        #: Done once `_auth` exists, or could not be made.
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gpushare-hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread unless it is busy; it does not outlive the process."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LINGER)

    async def login(self, token: str, uid: int) -> Principal:
        """Return the user of a token.

        Parameters
        ----------
        token
            The token of a user's server, of a user, or of a service.
        uid
            The uid of the process that presents it.

        Raises
        ------
        LoginError
            The token is of no user, or the Hub does not answer.
        """
        if not (0 < len(token) <= LONGEST and token.isascii() and token.isprintable()):
            raise LoginError("bad_token", "this is not a JupyterHub token")
        # Importing the Hub's client takes a while. A connection that ends meanwhile sends no request to the Hub.
        await asyncio.wait([asyncio.wrap_future(self._ready)])
        work = asyncio.run_coroutine_threadsafe(self._ask(token), self._loop)
        return _principal(await asyncio.wrap_future(work), uid)

    async def _ask(self, token: str) -> Any:
        try:
            auth = self._auth.result(0)
            # Not from its cache, because the token of a server that has ended must not be accepted.
            asked = auth.user_for_token(token, use_cache=False, sync=False)
            model = await asyncio.wait_for(asked, PATIENCE)
        except ImportError as error:
            raise LoginError(
                "hub_unreachable",
                f"the scheduler cannot verify tokens of the Hub ({error}); install jupyter-gpushare[jupyterhub] "
                "in the scheduler's environment, then restart it",
            ) from None
        except Exception as error:
            # Its client may raise HTTPError for answers of the Hub, and errors of other libraries for anything else.
            raise LoginError(
                "hub_unreachable",
                f"the Hub at {self._url} could not verify the token ({_short(error)}); "
                "check hub_api_url in the scheduler's configuration, and whether the Hub is running",
            ) from None
        if not isinstance(model, dict):
            raise LoginError(
                "bad_token",
                f"the Hub at {self._url} does not recognise the token; log in to the Hub again",
            )
        return model

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            # The import takes a second, and the library may be missing for a scheduler without a Hub.
            from jupyterhub.services.auth import HubAuth

            # Each question is asked with the token that it is about.
            self._auth.set_result(HubAuth(api_url=self._url, api_token="none", cache_max_age=0))
        except Exception as error:
            self._auth.set_exception(error)
        self._ready.set_result(None)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _principal(model: Mapping[str, Any], uid: int) -> Principal:
    """Return the user or service of one of the Hub's models."""
    name, scopes, groups = model.get("name"), model.get("scopes"), model.get("groups")
    if not isinstance(name, str) or not name:
        raise LoginError("bad_token", "the token has no scope that identifies its user")
    scopes = scopes if isinstance(scopes, list) else []
    groups = groups if isinstance(groups, list) else []
    # A service and a user may have the same name.
    user = printable(name if model.get("kind", "user") == "user" else f"service:{name}")
    return Principal(
        user,
        uid,
        admin=ADMIN in scopes,
        reader=READ in scopes,
        teams=tuple(printable(group) for group in groups if isinstance(group, str)),
    )


def _short(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no response within {PATIENCE:g} s"
    # A message of tornado: "HTTP 500: Internal Server Error (what happened)".
    return getattr(error, "log_message", None) or str(error) or type(error).__name__
