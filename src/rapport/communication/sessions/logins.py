"""Passwords set and taken away while a node runs: the sessions that the old one opened end with it.
[CO-11]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rapport.communication.blocking import run_blocking, run_to_end
from rapport.communication.sessions.authenticating import Authenticating
from rapport.communication.sessions.passwords import Passwords, check_password
from rapport.core.errors import UnknownName


def _unknown(peer: str) -> UnknownName:
    return UnknownName("peer", peer, code="peer.unknown")


async def _nobody() -> Sequence[str]:
    return ()


class Logins:
    """What may be done about a peer's login by who may change the node."""

    def __init__(
        self,
        passwords: Passwords,
        authenticating: Authenticating,
        is_peer: Callable[[str], bool],
        *,
        unknown: Callable[[str], UnknownName] = _unknown,
        others: Callable[[], Awaitable[Sequence[str]]] = _nobody,
    ) -> None:
        """`is_peer`: whether the directory knows the name; `unknown`: the error that says what was
        meant perhaps. Both may block. `others`: who has something else to get in with, that ends
        with all sessions.
        """
        self._passwords, self._authenticating = passwords, authenticating
        self._is_peer, self._unknown, self._others = is_peer, unknown, others
        authenticating.forgetting.append(self.forget_strangers)

    async def set_password(self, peer: str, password: str, *, by: str) -> int:
        """The peer's password from now on; returns how many sessions ended with the old one.

        Raises UnknownName for nobody's name, InvalidInput for a password that cannot be taken.
        """
        check_password(peer, password)
        if not await run_blocking(partial(self._is_peer, peer)):
            raise await run_blocking(partial(self._unknown, peer))
        return await run_to_end(self._set_password(peer, password, by))

    async def remove_password(self, peer: str, *, by: str) -> int:
        """The peer can log in no more; returns how many sessions ended."""
        return await run_to_end(self._remove_password(peer, by))

    async def _set_password(self, peer: str, password: str, by: str) -> int:
        await self._passwords.set(peer, password)
        return await self._authenticating.end_all(peer, by=by, reason="password set")

    async def _remove_password(self, peer: str, by: str) -> int:
        await self._passwords.remove(peer)
        return await self._authenticating.end_all(peer, by=by, reason="password removed")

    async def peer_changed(self, peer: str) -> None:
        """A peer that is gone from the directory is out, and leaves no password to who comes after
        it under the same name.
        """
        if not await run_blocking(partial(self._is_peer, peer)):
            await self.remove_password(peer, by="directory")

    async def forget_strangers(self) -> None:
        """Takes away the passwords of peers that left the directory unseen, as their sessions end:
        the site file was changed while nothing ran, or a kill came before `peer_changed`. Reads all
        passwords; raises what a directory that is away raises.
        """
        for peer in sorted({*await self._passwords.peers(), *await self._others()}):
            await self.peer_changed(peer)
