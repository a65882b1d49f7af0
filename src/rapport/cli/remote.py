"""Talking to a running node over its doors, with the standard library only."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile

_TIMEOUT_SECONDS = 70


class Remote:
    """The doors of one node."""

    def __init__(self, url: str, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is not an http address", code="url.bad")
        self._url, self._token = url.rstrip("/"), token

    @staticmethod
    def of_site(directory: Path, url: str | None) -> Remote:
        """The node that the site's settings speak of, or the one at `url`."""
        file = TomlFile.load(directory / "site.toml")
        settings = load_settings(file.section("node"), flags={})
        token = ""
        if settings.token_file:
            token = (directory / settings.token_file).read_text(encoding="utf-8").strip()
        return Remote(
            url or settings.public_url or f"http://{settings.host}:{settings.port}", token
        )

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> Any:
        """Sends a body; returns the decoded answer."""
        return self._ask(path, body, content_type)

    def get(self, path: str) -> Any:
        """Returns the decoded answer."""
        return self._ask(path, None, "")

    def _ask(self, path: str, body: bytes | None, content_type: str) -> Any:
        request = urllib.request.Request(self._url + path, data=body)
        if content_type:
            request.add_header("Content-Type", content_type)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                return msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:
            raise _as_rapport_error(error) from None
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise Unavailable(
                f"no node answers at {self._url}: {reason}",
                code="node.unreachable",
                hint="start one with: rapport up --site DIR",
            ) from None


def _as_rapport_error(error: urllib.error.HTTPError) -> RapportError:
    raw = error.read()
    try:
        body = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    kind = InvalidInput if 400 <= error.code < 500 else Unavailable
    return kind(
        str(body.get("detail", f"the node answered {error.code}")),
        code=str(body.get("title", "http.refused")),
        hint=str(body.get("hint", "")),
    )
