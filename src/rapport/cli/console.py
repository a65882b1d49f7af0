"""A rich console that shows all content as text: content of sensors, people or files cannot control
the terminal, set colours or become emoji. [UX-3]

Separate from `output.py` because it imports rich, which most commands never need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rapport.cli.output import visible


class PlainConsole(Console):
    """Shows marks that would steer a terminal instead of doing them, in trees and tables too."""

    def __init__(self, **how: Any) -> None:
        # emoji: `urn:ngsi-ld:bus:12` is an identity, and no picture of a bus.
        super().__init__(highlight=False, emoji=False, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does it; styles are added after this, so odd characters are foreign."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment(visible(text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """The reader left (`| head`): for the command line to deal with, as for plain output."""
        raise BrokenPipeError
