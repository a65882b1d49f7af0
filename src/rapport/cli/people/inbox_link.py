"""`rapport peers inbox-link NAME`: a link to a person's inbox. [CO-16, UX-3]"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rapport.cli.people.peers_asking import in_path
from rapport.cli.terminal import stderr, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput

_LONGEST_DAYS = 365


def inbox_link(
    name: Annotated[str, Parameter(help="The peer.")],
    *,
    days: Annotated[int, Parameter(help="How long it opens the inbox.")] = 30,
    where: Where = HERE,
    json: Annotated[bool, Parameter(negative="", help="As JSON.")] = False,
) -> None:
    """Make a link that opens a peer's inbox without a password; prints it. Who has it reads and
    answers as that person: give it to nobody else. The node has to run.
    """
    if not 1 <= days <= _LONGEST_DAYS:
        raise InvalidInput(
            f"--days is from 1 to {_LONGEST_DAYS}",
            code="cli.wrong_use",
            hint="leave it out for 30; a new link can be made at any time",
        )
    remote = where.remote()
    made = remote.post(f"/peers/{in_path(name)}/inbox-link?days={days}", b"")
    if json:
        write_json(made)
        return
    print(made["link"])
    stderr().print(
        f"opens the inbox of {name} until {made['expires']}, for whoever has it",
        markup=False,
        soft_wrap=True,
    )
