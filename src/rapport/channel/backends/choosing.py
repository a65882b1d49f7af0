"""Opening the channels that a site declares: which stores, by the site's `[channels]`. [CH-13]"""

from __future__ import annotations

from pathlib import Path

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.declared import ChannelsDeclared
from rapport.channel.logged import LoggedChannels
from rapport.core.errors import Unsupported
from rapport.kernel.clock import Clock


def open_channels(
    directory: Path,
    clock: Clock,
    declared: ChannelsDeclared,
    *,
    site: Path,
    segment_bytes: int,
) -> LoggedChannels:
    """The site's channels; `site` is where secret files named in `declared` are looked for.

    Raises StoreUnavailable when a store cannot be reached or another process writes it.
    """
    chosen = {rule.log for rule in (declared.common, *declared.rules)} | {declared.records}
    for name in ("postgres", "nats"):
        if name in chosen:
            raise Unsupported(f"keeping channels in {name}")
    return open_embedded(directory, clock, segment_bytes=segment_bytes)
