"""Access in force on a running node: tokens read, rights and rates ready to be asked. [CH-15]"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.channel.access.declared import Access, access_from_site
from rapport.channel.access.keys import read_key
from rapport.channel.access.rates import Rates
from rapport.channel.access.rights import NODE, Rights
from rapport.channel.access.tokens import TokenBook, check_token, read_tokens
from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in, what each may do, and how fast."""

    access: Access
    rights: Rights
    tokens: TokenBook
    rates: Rates

    def identify(self, token: str) -> str | None:
        """Whose token this is; None for nobody's."""
        return self.tokens.find(token)

    def is_closed(self) -> bool:
        """Whether callers have to show who they are."""
        return len(self.tokens) > 0

    def with_node_token(self, token: str) -> Admission:
        """The same, with the node's own token; "" = it has none."""
        if not token:
            return self
        return msgspec.structs.replace(self, tokens=self.tokens.with_token(NODE, token))


def open_admission(access: Access, directory: Path) -> Admission:
    """Reads the tokens that the site names; raises InvalidInput for one that is missing or weak."""
    return Admission(
        access=access,
        rights=access.rights(),
        tokens=read_tokens(access.token_places(), directory),
        rates=Rates(access.rates()),
    )


def load_access(file: TomlFile) -> Access:
    """What `[access]` says; raises SiteError with all that is wrong."""
    access, problems = access_from_site(file)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise SiteError(errors)
    return access


def read_node_token(token_file: str, directory: Path) -> str:
    """The node's own token; "" when it has none. Raises InvalidInput for a weak one."""
    if not token_file:
        return ""
    token = read_secret(f"file:{token_file}", directory)
    check_token(token, whose=f"the node ({token_file})")
    return token


def check_access(file: TomlFile, directory: Path) -> list[Problem]:
    """All that is wrong with `[access]`, and warnings for secrets and keys that are not here: a
    site may be checked on a machine that has none of them.
    """
    access, problems = access_from_site(file)
    problems += _taking_problems(file, access)
    for name, place in access.token_places():
        if place.startswith(("file:", "env:")):
            problems += _token_problems(file, directory, name, place)
    for name, declared in access.keys.items():
        try:
            read_key(declared, directory)
        except InvalidInput as error:
            missing = error.code == "signature.no_key"
            problems.append(
                file.problem(
                    ("access", "keys", name),
                    error.code,
                    error.message,
                    hint=error.hint,
                    severity="warning" if missing else "error",
                )
            )
    return problems


def _taking_problems(file: TomlFile, access: Access) -> list[Problem]:
    """A hint for sites from before taking had a right of its own."""
    grants = [one.grant for one in access.identities.values()]
    if not any(grant.subscribe for grant in grants) or any(grant.take for grant in grants):
        return []
    return [
        file.problem(
            ("access",),
            "access.nobody_takes",
            "no identity may take messages: to read does not include it",
            hint='who takes needs take = ["CHANNEL"] beside subscribe; all is well if nobody does',
            severity="hint",
        )
    ]


def _token_problems(file: TomlFile, directory: Path, name: str, place: str) -> list[Problem]:
    try:
        read_tokens([(name, place)], directory)
    except InvalidInput as error:
        problem = file.problem(
            ("access", name),
            error.code,
            error.message,
            hint=error.hint or f"make one: rapport access token {name}",
            severity="warning" if error.code == "settings.no_secret" else "error",
        )
        return [msgspec.structs.replace(problem, excerpt="")]
    return []


OPEN_TO_ALL = open_admission(Access(), Path())
"""The admission of a node without `[access]`: who is on this machine may everything."""
