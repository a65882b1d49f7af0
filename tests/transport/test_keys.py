"""Keys and their rotation, in memory and on disk. [CX-9]"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rapport.core.errors import Conflict, InvalidInput, SiteError, Unavailable, UnknownName
from rapport.transport.keys import (
    FOREVER_MS,
    DatagramKeys,
    KeyFileWatch,
    add_key,
    load_keys,
    make_key,
    read_key_file,
    retire_key,
    share_keys,
)
from rapport.transport.sealed_datagrams import Sealer, Unsealer

NOW = 1_772_442_000_000
HOUR = 3_600_000


def test_the_secret_of_a_key_is_in_no_text_of_it() -> None:
    key = make_key("brokers", "network")
    ring = DatagramKeys([key])
    for text in (repr(key), str(key), repr(ring), f"{[key]}"):
        assert key.secret.hex() not in text
        assert repr(key.secret) not in text
        assert "secret" not in text


def test_the_newest_valid_key_of_the_holder_seals() -> None:
    old = make_key("brokers", "network", until_ms=NOW + 2 * HOUR)
    new = make_key("brokers", "network", from_ms=NOW + HOUR)
    ring = DatagramKeys([old, new, make_key("ann", "client", from_ms=NOW)])
    assert ring.sealing(NOW) == (old, NOW + HOUR)
    assert ring.sealing(NOW + HOUR) == (new, FOREVER_MS)
    assert ring.is_member


def test_without_a_valid_key_sealing_says_so() -> None:
    ring = DatagramKeys([make_key("brokers", "network", until_ms=NOW)])
    with pytest.raises(Unavailable) as found:
        ring.sealing(NOW)
    assert found.value.code == "keys.none_valid"


def test_whose_keys_these_are_must_be_clear() -> None:
    north, south = make_key("north", "network"), make_key("south", "network")
    with pytest.raises(InvalidInput) as found:
        DatagramKeys([north, south])
    assert found.value.code == "keys.ambiguous_owner"
    assert DatagramKeys([north, south], own="south").sealing(NOW)[0] is south
    with pytest.raises(UnknownName):
        DatagramKeys([north, south], own="soth")
    with pytest.raises(InvalidInput):
        DatagramKeys([])
    with pytest.raises(InvalidInput):
        DatagramKeys([north, replace(south, owner="north", kind="client")])


def test_while_keys_are_rotated_no_datagram_is_refused() -> None:
    old = make_key("brokers", "network", until_ms=NOW + 2 * HOUR)
    new = make_key("brokers", "network", from_ms=NOW + HOUR)
    sender, receiver = DatagramKeys([old]), DatagramKeys([old])
    seal, unseal = Sealer(sender, os.urandom(16)), Unsealer(receiver)
    sealed_with = []
    for minute in range(0, 180, 5):
        now = NOW + minute * 60_000
        if minute == 20:
            receiver.replace_with(DatagramKeys([old, new]))  # files arrive one after the other
        if minute == 40:
            sender.replace_with(DatagramKeys([old, new]))
        opened = unseal.open(seal.seal(b"word", now), now)
        assert opened is not None, minute
        sealed_with.append(opened[1].key.id)
        # One under way when the next hour began, or from a clock that is behind.
        assert unseal.open(seal.seal(b"word", now - 20_000), now + 5_000) is not None
    assert set(sealed_with[:12]) == {old.id}
    assert set(sealed_with[12:]) == {new.id}


def test_a_key_is_not_accepted_after_its_time_nor_before_it() -> None:
    key = make_key("brokers", "network", from_ms=NOW, until_ms=NOW + HOUR)
    forever = replace(key, from_ms=0, until_ms=FOREVER_MS)
    seal, unseal = Sealer(DatagramKeys([forever]), os.urandom(16)), Unsealer(DatagramKeys([key]))
    for now, is_heard in [
        (NOW - 30_001, False),
        (NOW - 29_000, True),
        (NOW + HOUR + 29_000, True),
        (NOW + HOUR + 30_000, False),
    ]:
        assert (unseal.open(seal.seal(b"word", now), now) is not None) == is_heard
    assert unseal.counters.invalid_key == 2


def test_a_key_taken_out_of_the_ring_is_not_accepted_and_back_in_it_nothing_is_taken_twice() -> (
    None
):
    key, other = make_key("ann", "client"), make_key("brokers", "network")
    keys = DatagramKeys([key, other])
    seal, unseal = Sealer(DatagramKeys([key]), os.urandom(16)), Unsealer(keys)
    captured = seal.seal(b"one", NOW)
    assert unseal.open(captured, NOW)
    keys.replace_with(DatagramKeys([other]))
    assert unseal.open(seal.seal(b"two", NOW), NOW) is None
    keys.replace_with(DatagramKeys([key, other]))
    assert unseal.open(captured, NOW) is None
    assert unseal.open(seal.seal(b"three", NOW), NOW) is not None


def test_keys_on_disk_are_made_added_and_read_back(tmp_path) -> None:
    path = tmp_path / "secrets" / "keys.toml"
    network = make_key("brokers", "network", from_ms=NOW)
    ann = make_key("ann", "client", from_ms=NOW, until_ms=NOW + HOUR)
    add_key(path, network)
    add_key(path, ann)
    assert read_key_file(path).keys == (network, ann)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keys(path).own == "brokers"
    assert sorted(one.name for one in path.parent.iterdir()) == ["keys.toml"]


def test_a_retired_key_ends(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    old, future = make_key("a", "network"), make_key("a", "network", from_ms=NOW + HOUR)
    add_key(path, old)
    add_key(path, future)
    assert retire_key(path, old.id, NOW).until_ms == NOW
    retire_key(path, future.id, NOW)
    assert not any(key.is_valid_at(NOW) for key in load_keys(path))
    with pytest.raises(InvalidInput):
        retire_key(path, old.id, NOW + 1)
    with pytest.raises(UnknownName) as found:
        retire_key(path, old.id[:-1] + "x", NOW)
    assert found.value.code == "keys.unknown_key"


def test_a_client_gets_a_file_with_its_own_keys_only(tmp_path) -> None:
    path, theirs = tmp_path / "keys.toml", tmp_path / "ann.toml"
    ann = make_key("ann", "client")
    for key in (make_key("brokers", "network"), ann, make_key("ben", "client")):
        add_key(path, key)
    share_keys(path, "ann", theirs)
    assert list(load_keys(theirs)) == [ann]
    assert not load_keys(theirs).is_member
    with pytest.raises(UnknownName):
        share_keys(path, "anna", tmp_path / "other.toml")


def test_a_file_that_others_may_read_is_refused(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, make_key("brokers", "network"))
    path.chmod(0o640)
    with pytest.raises(InvalidInput) as found:
        load_keys(path)
    assert found.value.code == "keys.readable_by_others"


def test_a_running_ring_takes_up_a_changed_file_and_keeps_its_keys_when_it_is_broken(
    tmp_path,
) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, make_key("brokers", "network"))
    watch = KeyFileWatch(path)
    assert not watch.refresh()
    ann = make_key("ann", "client")
    add_key(path, ann)
    assert watch.refresh()
    assert watch.keys.find(ann.id) == ann
    path.write_text("[[keys]]\nid = ")
    assert not watch.refresh()
    assert watch.keys.find(ann.id) == ann
    path.unlink()
    assert not watch.refresh()
    assert len(watch.keys) == 2


FAULTS = {
    "bad id": ('id = "xyz"', "id"),
    "bad kind": ('kind = "king"', "kind"),
    "short secret": ('secret = "QUJD"', "secret"),
    "no base64": ('secret = "!!!"', "secret"),
    "local time": ("from = 2026-01-01T00:00:00", "from"),
    "backwards": ("until = 1970-01-01T00:00:00Z", "until"),
    "unknown field": ("colour = 1", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_in_a_file_has_a_place_and_tells_no_secret(tmp_path, name) -> None:
    path = tmp_path / "keys.toml"
    good = make_key("brokers", "network")
    add_key(path, good)
    text = path.read_text()
    changed, field = FAULTS[name]
    lines = [line for line in text.splitlines() if not (field and line.startswith(f"{field} ="))]
    path.write_text("\n".join([*lines, changed]) + "\n")
    with pytest.raises(SiteError) as found:
        load_keys(path)
    (problem,) = found.value.problems
    assert (problem.code, problem.file, problem.line) == ("keys.bad_key", "keys.toml", 3)
    secret = next(line for line in text.splitlines() if line.startswith("secret"))[10:-1]
    assert secret not in found.value.message


def test_broken_toml_is_reported_without_the_line_it_stands_in(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, make_key("brokers", "network"))
    text = path.read_text()
    secret = next(line for line in text.splitlines() if line.startswith("secret"))
    path.write_text(text.replace(secret, secret[:-1]))
    with pytest.raises(SiteError) as found:
        load_keys(path)
    assert found.value.problems[0].line == 7
    assert secret[10:-1] not in found.value.message


def test_two_who_change_a_file_at_once_do_not_overwrite_each_other(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, make_key("brokers", "network"))
    (tmp_path / ".keys.toml.changing").write_text("")
    with pytest.raises(Conflict) as found:
        add_key(path, make_key("ann", "client"))
    assert found.value.code == "keys.changed"
    assert len(load_keys(path)) == 1


def test_a_file_that_others_could_read_is_taken_up_when_they_no_longer_can(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, make_key("brokers", "network"))
    watch = KeyFileWatch(path)
    add_key(path, make_key("station", "client"))
    path.chmod(0o644)
    assert not watch.refresh()
    path.chmod(0o600)  # as the error says
    assert watch.refresh()
    assert len(watch.keys) == 2


def test_nobody_is_called_what_a_process_is_to_itself(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="the owner 'local' is reserved"):
        make_key("local", "client")
    path = tmp_path / "keys.toml"
    add_key(path, make_key("locals", "client"))
    path.write_text(path.read_text().replace('"locals"', '"local"'))
    with pytest.raises(SiteError, match="the owner 'local' is reserved"):
        load_keys(path)
