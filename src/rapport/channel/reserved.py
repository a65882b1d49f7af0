"""Channels that the node keeps for itself. [CH-15]"""

from __future__ import annotations

SUMMARIES = "overlay.summaries"
"""What the node's broker and ensemble node did, a line a minute from each."""
OF_THE_NODE = (
    "auth",
    "context.audit",
    "context.found",
    "context.wishes",
    "control",
    "dead_letters",
    "detections",
    "handed",
    "info",
    "input",
    "intercepted",
    "log",
    SUMMARIES,
    "pipeline",
    "policies",
    "quarantine",
    "releases",
    "tables.rows",
)
"""Their events are acted on, or mean something only where they arose."""
CHANGING = ("interpretations",)
"""Those of the shared ones whose events change the node that takes them in: no pattern of a link
means them, and who hands them over needs the right to change the node.
"""
_SHARED = ("context", "events", "knowledge", *CHANGING)
"""Appended to by the node alone as well, but neighbours may hand theirs over."""
READER_PREFIX = "intercept."
"""Before the names of readers that are interceptors; no identity has such a name, as what they read
passes no interceptor.
"""
OUTPUT = "output."
"""Before the names of channels in which deliveries wait for their adapter."""
REQUEST = "request."
"""Before the names of channels in which pull adapters are asked to look."""


def is_of_the_node(channel: str) -> bool:
    """Nobody else appends to it, not even a neighbour."""
    return channel in OF_THE_NODE or channel.startswith((OUTPUT, REQUEST))


def is_reserved(channel: str) -> bool:
    """No publisher appends to it, whatever rights it has."""
    return channel in _SHARED or is_of_the_node(channel)
