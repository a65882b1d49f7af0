"""`rapport access`: tokens, rights, keys and signature checks. [CH-15, CH-18]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from rapport.channel.access.identities import Access, check_identity_name, load_access, new_token
from rapport.channel.access.signatures import find_node_key, open_keys
from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.hints import unknown, wrong_use
from rapport.cli.local_site import data_directory, read_channels
from rapport.cli.output import print_line, print_note, write_json, write_table
from rapport.core.errors import InvalidInput
from rapport.kernel.files import create_secret_file
from rapport.kernel.signing_keys import KeyRing, SigningKey
from rapport.kernel.toml import TomlFile

app = App(name="access", help="Say who may do what: tokens, rights, keys, signatures.")

_SECRETS = "secrets"


@app.command
def token(
    name: Annotated[str, Parameter(help="The identity that gets a token.")],
    *,
    site: SiteOption = None,
    file: Annotated[Path | None, Parameter(help="Relative to the site.")] = None,
) -> None:
    """Make a new random token in a file that only you can read; print what to put in site.toml."""
    directory = site_directory(site)
    access = _access(directory)
    check_identity_name(name)
    place = file or _free_place(directory, name)
    create_secret_file(directory / place, new_token().encode() + b"\n")
    print_note(f"made {directory / place} (mode 0600); in site.toml:")
    known = access.identities.get(name)
    header = f'[access."{name}"]' if "." in name else f"[access.{name}]"
    if known is None:
        lines = [header, f'token = "file:{place}"', "publish = []", "subscribe = []"]
    else:
        places = ", ".join(f'"{one}"' for one in (*known.tokens, f"file:{place}"))
        lines = [header, f"tokens = [{places}]   # instead of its token line"]
    print_line("\n".join(lines))


@app.command(name="list")
def show(*, site: SiteOption = None, json: JsonOption = False) -> None:
    """Show the identities of a site and what each may do."""
    access = _access(site_directory(site))
    grants = access.rights().grants()
    rates = access.rates()
    if json:
        write_json(
            [{"identity": n, **_as_dict(g), "rate": rates.get(n)} for n, g in grants.items()]
        )
        return
    rows = [
        (
            name,
            " ".join(grant.publish) or "-",
            " ".join(grant.subscribe) or "-",
            " ".join(grant.take) or "-",
            "yes" if grant.admin else "no",
            f"{rates[name]}/s" if name in rates else "any",
            " ".join(access.identities[name].tokens) if name in access.identities else "",
        )
        for name, grant in grants.items()
    ]
    columns = ("identity", "publish", "subscribe", "take", "admin", "rate", "tokens")
    write_table("access", columns, rows)


@app.command
def check(
    name: Annotated[str, Parameter(help="An identity.")],
    right: Literal["publish", "subscribe", "take", "admin"],
    channel: str = "",
    *,
    site: SiteOption = None,
) -> int:
    """Say whether an identity has a right; exit code 1 when it has not."""
    rights = _access(site_directory(site)).rights()
    if name not in rights.grants():
        raise unknown(
            "identity",
            name,
            rights.grants(),
            if_none=f"declare it in site.toml; rapport access token {name} says how",
            code="access.unknown_identity",
        )
    if right == "admin":
        allowed = rights.allows_admin(name)
    elif channel:
        allowed = rights.allows(name, right, channel)
    else:
        raise wrong_use(
            f"the right to {right} is one to a channel: name it",
            f"rapport access check {name} {right} CHANNEL",
        )
    print("yes" if allowed else "no")
    return 0 if allowed else 1


@app.command
def keys(*, site: SiteOption = None, json: JsonOption = False) -> None:
    """Show the public keys that signatures are checked with, the node's own among them."""
    ring = _ring(site_directory(site))
    if json:
        write_json([_key_row(key.name, key.fingerprint, key.as_text()) for key in ring.by_name()])
        return
    rows = [
        (key.name, key.fingerprint, key.as_text(), " ".join(key.sources)) for key in ring.by_name()
    ]
    write_table("keys", ("name", "fingerprint", "key", "sources"), rows)


@app.command
def make_key(
    file: Annotated[Path, Parameter(help="Where the private key goes; it must not be there yet.")],
) -> None:
    """Make a key to sign with, for Publisher(..., sign_with=FILE); print its [access.keys] line."""
    key = SigningKey.new()
    key.save(file)
    print_note(f"made {file} (mode 0600); in site.toml of who checks:")
    print_line(f'[access.keys]\n{file.stem} = "{key.public.as_text()}"   # {key.fingerprint}')


@app.command
def verify(
    event_id: Annotated[str, Parameter(help="An event, reading, detection or message.")],
    *,
    site: SiteOption = None,
    json: JsonOption = False,
) -> int:
    """Check the signatures of an event and of all it follows from; exit code 1 for a bad one."""
    from rapport.channel.access.signatures import proofs_of

    directory = site_directory(site)
    ring = _ring(directory)
    proofs = read_channels(directory, lambda channels: proofs_of(channels, event_id, ring))
    if json:
        write_json(proofs)
    else:
        rows = [
            (
                f"{proof.channel} #{proof.position}",
                proof.type,
                proof.id,
                proof.verdict.state,
                proof.verdict.key or "-",
                proof.said or "-",
                proof.verdict.why,
            )
            for proof in proofs
        ]
        columns = ("where", "type", "id", "signature", "key", "raw was", "why")
        write_table("signatures", columns, rows)
    return int(any(proof.verdict.state == "bad" for proof in proofs))


def _access(directory: Path) -> Access:
    return load_access(TomlFile.load(directory / "site.toml"))


def _ring(directory: Path) -> KeyRing:
    node = find_node_key(data_directory(directory))
    return open_keys(_access(directory), directory, node)


def _free_place(directory: Path, name: str) -> Path:
    """A file that does not exist yet: a token in use is not overwritten, a second is made."""
    for number in range(1, 1_000):
        place = Path(_SECRETS) / (f"{name}.token" if number == 1 else f"{name}-{number}.token")
        if not (directory / place).exists():
            return place
    raise InvalidInput(
        f"{name!r} has too many tokens",
        code="access.file_exists",
        hint=f"remove old ones from {directory / _SECRETS}, or name the new one with --file",
    )


def _as_dict(grant: object) -> dict[str, object]:
    import msgspec

    return dict(msgspec.to_builtins(grant))


def _key_row(name: str, fingerprint: str, key: str) -> dict[str, str]:
    return {"name": name, "fingerprint": fingerprint, "key": key}
