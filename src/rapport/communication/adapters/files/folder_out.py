"""A local folder as a medium: each delivery is a JSON file, there whole or not at all. [CO-16]"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.delivery_json import delivery_json
from rapport.communication.adapters.files.folder_files import write_atomically
from rapport.communication.adapters.files.settings import FolderSettings
from rapport.communication.adapters.mail.ids import TokenFor, no_token
from rapport.communication.blocking import run_blocking
from rapport.core.ids import content_id

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


@adapter("folder")
class FolderAdapter:
    """Writes to the folder that the address names (`folder:alarms`); the same key is the same
    file.
    """

    name = "folder"
    repeatable = True

    def __init__(self, settings: FolderSettings, token_for: TokenFor = no_token) -> None:
        """`token_for(message, peer)` is written along, as the proof of an answer."""
        self._settings, self._token_for = settings, token_for

    async def send(self, delivery: Delivery) -> Outcome:
        """Durable in the folder = sent; a full disk or a missing folder is worth a retry."""
        folder = self._settings.folders.get(delivery.target)
        if folder is None:
            return Failed("the site declares no such folder", retry=False)
        if is_too_long(delivery.text, self._settings.largest_text):
            return Failed(too_long(self._settings.largest_text), retry=False)
        content = delivery_json(delivery, self._token_for(delivery.message, delivery.peer))
        name = file_name(delivery)
        try:
            await run_blocking(partial(write_atomically, Path(folder), name, content))
        except OSError as error:
            return Failed(f"the folder cannot be written: {error.strerror}", retry=True)
        return Sent(name)

    async def close(self) -> None:
        """Nothing to let go of."""


def file_name(delivery: Delivery) -> str:
    """The name of the delivery's file: nothing that comes from outside stands in it."""
    key = delivery.key
    return f"{key if _PLAIN_NAME.match(key) else content_id(key)}.json"


def is_too_long(text: str, most: int) -> bool:
    """Whether the text has more bytes than that; cheap for what is far too long."""
    return len(text) > most or len(text.encode("utf-8", "replace")) > most


def too_long(most: int) -> str:
    """The reason of a delivery that was not tried."""
    return f"message.too_long: the text has more than {most} bytes"
