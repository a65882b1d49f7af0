import stat
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from rapport.core.codec import decode_cloudevents, encode_cloudevent
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.event import Event
from rapport.core.signature import COVERED_HEADERS, SIGNATURE, SIGNED_BY
from rapport.kernel.signing_keys import (
    KeyRing,
    PublicKey,
    SigningKey,
    fingerprint_of,
    public_key,
    sign_event,
    verify_event,
)

PEM = (
    b"-----BEGIN PRIVATE KEY-----\n"
    b"MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"
    b"-----END PRIVATE KEY-----\n"
)
KEY = SigningKey.from_pem(PEM, name="a test")
RING = KeyRing([PublicKey("gateway", KEY.public.raw)])
SEEN = Event(
    source="door-3",
    id="e1",
    type="badge.seen",
    subject="person/5",
    time=1_772_442_000_000,
    data=b'{"tag":77}',
    headers={"cause": "e0"},
)
SIGNED = sign_event(SEEN, KEY)


def test_signing_gives_the_bytes_it_always_gave() -> None:
    assert SIGNED.headers[SIGNED_BY] == "ed25519.56475aa75463474c0285df5dbf2bcab7"
    assert SIGNED.headers[SIGNATURE] == (
        "xw7IJTyHV9CvOUub0PxIYu9XDhSOxN-MP_mpBr4rOGLa2jaZhRkha9QyXFPc6EOfP_6Dc9h3QTZoJJ_yFDxgAA"
    )
    assert sign_event(SIGNED, KEY) == SIGNED


def test_a_signed_event_is_good_also_after_a_way_through_json() -> None:
    assert verify_event(SIGNED, RING).state == "ok"
    assert verify_event(SIGNED, RING).key == "gateway"
    (back,) = decode_cloudevents(b"[" + encode_cloudevent(SIGNED) + b"]", received_ms=0)
    assert verify_event(back, RING).state == "ok"


CHANGES = [
    msgspec.structs.replace(SIGNED, source="door-4"),
    msgspec.structs.replace(SIGNED, id="e2"),
    msgspec.structs.replace(SIGNED, type="badge.lost"),
    msgspec.structs.replace(SIGNED, subject=""),
    msgspec.structs.replace(SIGNED, time=SIGNED.time + 1),
    msgspec.structs.replace(SIGNED, data=b'{"tag":78}'),
    msgspec.structs.replace(SIGNED, data=b'{"tag": 77}'),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_any_change_of_a_field_is_found(changed: Event) -> None:
    assert verify_event(changed, RING).state == "bad"


@pytest.mark.parametrize("name", COVERED_HEADERS)
def test_any_change_of_a_covered_header_is_found(name: str) -> None:
    changed = msgspec.structs.replace(SIGNED, headers={**SIGNED.headers, name: "other"})
    assert verify_event(changed, RING).state == "bad"


@given(
    st.sampled_from(["source", "id", "type", "subject"]),
    st.text(max_size=8),
    st.dictionaries(st.sampled_from(["publisher", "sequence", "hops", "x"]), st.text(max_size=5)),
)
def test_only_changes_of_what_is_signed_break_a_signature(
    field: str, value: str, transport: dict[str, str]
) -> None:
    carried = msgspec.structs.replace(SIGNED, headers={**SIGNED.headers, **transport})
    assert verify_event(carried, RING).state == "ok"
    changed = msgspec.structs.replace(carried, **{field: value})
    same = value == getattr(SIGNED, field)
    assert verify_event(changed, RING).state == ("ok" if same else "bad")


@given(st.integers(0, 85), st.characters())
def test_a_changed_signature_is_bad(place: int, letter: str) -> None:
    text = SIGNED.headers[SIGNATURE]
    changed = text[:place] + letter + text[place + 1 :]
    event = msgspec.structs.replace(SIGNED, headers={**SIGNED.headers, SIGNATURE: changed})
    assert verify_event(event, RING).state == ("ok" if changed == text else "bad")


def test_unsigned_and_unknown_keys_are_told_apart() -> None:
    assert verify_event(SEEN, RING).state == "unsigned"
    stranger = verify_event(sign_event(SEEN, SigningKey.new()), RING)
    assert (stranger.state, stranger.key[:8]) == ("unknown_key", "ed25519.")


def test_a_key_speaks_only_for_its_sources() -> None:
    ring = KeyRing([PublicKey("gateway", KEY.public.raw, ("door-*",))])
    assert verify_event(SIGNED, ring).state == "ok"
    other = sign_event(msgspec.structs.replace(SEEN, source="lift"), KEY)
    verdict = verify_event(other, ring)
    assert verdict.state == "bad"
    assert "lift" in verdict.why


def test_public_keys_are_read_from_base64_and_pem() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    loaded = Ed25519PublicKey.from_public_bytes(KEY.public.raw)
    pem = loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for text in (KEY.public.as_text(), f"  {KEY.public.as_text()}\n", pem):
        assert public_key("gateway", text).raw == KEY.public.raw
    assert KEY.fingerprint == fingerprint_of(KEY.public.raw)


@pytest.mark.parametrize("text", ["", "short", "!!!", "-----BEGIN NONSENSE", "QUFB", "é" * 44])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        public_key("gateway", text)
    assert caught.value.code == "signature.bad_key"


def test_a_private_key_is_kept_for_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "door.pem"
    key = SigningKey.new()
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).fingerprint == key.fingerprint
    with pytest.raises(DuplicateName):
        SigningKey.new().save(path)
    assert [child.name for child in path.parent.iterdir()] == ["door.pem"]


@pytest.mark.parametrize("content", [b"", b"nonsense", PEM[:60], PEM.replace(b"MC4C", b"MC4D")])
def test_a_file_without_a_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "door.pem"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        SigningKey.load(path)
    assert caught.value.code == "signature.bad_key"
    assert "MC4" not in str(caught.value)


def test_secrets_are_in_no_repr() -> None:
    assert repr(KEY) == f"SigningKey({KEY.fingerprint})"


def test_programs_that_do_not_sign_do_not_load_cryptography() -> None:
    code = "import sys, rapport.client; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
