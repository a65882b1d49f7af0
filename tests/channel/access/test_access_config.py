from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rapport.channel.access.identities import (
    LOCAL,
    Bucket,
    FailedAttempts,
    Rates,
    TokenDirectory,
    access_from_site,
    check_access,
    check_identity_name,
    check_token,
    full_bucket,
    load_access,
    new_token,
    open_admission,
    read_node_token,
    read_tokens,
    take,
)
from rapport.channel.access.signatures import find_node_key, node_key_path, open_keys, open_node_key
from rapport.core.errors import InvalidInput, Problem, SiteError, TooFast
from rapport.kernel.toml import TomlFile

TOKEN = "k3Jx9_PpQ7vTn2LwZr5bYc8d"
WHOLE = """
[access]
sign = true
[access.gateway]
tokens = ["file:gateway.token", "env:GATEWAY"]
publish = ["raw.*"]
subscribe = "detections"
rate = 1000
[access.boss]
token = "file:boss.token"
publish = ["*"]
subscribe = ["*"]
admin = true
[access.local]
subscribe = ["*"]
[access.keys]
gateway = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
[access.keys.door]
key = "file:door.pub"
sources = ["door-*"]
"""


def site(text: str) -> TomlFile:
    return TomlFile.parse(text.encode(), name="site.toml")


def faults(text: str) -> list[Problem]:
    return access_from_site(site(text))[1]


def test_a_whole_table_is_read() -> None:
    access, problems = access_from_site(site(WHOLE))
    assert problems == []
    assert access.sign
    assert access.rates() == {"gateway": 1000}
    assert access.knows_local()
    assert [place for _, place in access.token_places()] == [
        "file:gateway.token",
        "env:GATEWAY",
        "file:boss.token",
    ]
    rights = access.rights()
    assert rights.allows("gateway", "publish", "raw.doors")
    assert not rights.allows("gateway", "publish", "mine")
    assert rights.allows(LOCAL, "subscribe", "log")
    assert not rights.allows(LOCAL, "publish", "mine")
    rights.check_admin("boss")
    assert access.keys["door"].sources == ("door-*",)


def test_without_identities_who_is_on_this_machine_may_everything() -> None:
    for text in ("", "[access]\nsign = true", '[access.keys]\na = "b"'):
        rights = access_from_site(site(text))[0].rights()
        assert rights.allows(LOCAL, "publish", "mine")
        rights.check_admin(LOCAL)


def test_as_soon_as_there_is_an_identity_nobody_else_may_anything() -> None:
    access, _ = access_from_site(site('[access.a]\ntoken = "env:A"'))
    assert not access.rights().allows(LOCAL, "subscribe", "mine")
    assert not access.knows_local()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[access.a]\ntoken = "env:A"\npubish = []', "site.unknown_key"),
        ('[access.a]\ntoken = "abcdefg"', "settings.bare_secret"),
        ('[access.a]\ntoken = "file:"', "settings.bare_secret"),
        ("[access.a]\ntoken = 5", "site.wrong_type"),
        ('[access.a]\npublish = ["x"]', "access.no_token"),
        ('[access.local]\ntoken = "env:A"', "access.local_token"),
        ('[access.node]\ntoken = "env:A"', "access.bad_name"),
        ('[access.nobody]\ntoken = "env:A"', "access.bad_name"),
        ('[access."A B"]\ntoken = "env:A"', "access.bad_name"),
        ('[access.a]\ntoken = "env:A"\npublish = ["Raw/*"]', "access.bad_pattern"),
        ('[access.a]\ntoken = "env:A"\npublish = ["log"]', "access.useless_right"),
        ('[access.a]\ntoken = "env:A"\npublish = ["intercepted"]', "access.useless_right"),
        ('[access.a]\ntoken = "env:A"\npublish = ["interpretations"]', "access.useless_right"),
        ('[access.a]\ntoken = "env:A"\nrate = 0', "site.out_of_range"),
        ('[access.a]\ntoken = "env:A"\nadmin = "yes"', "site.wrong_type"),
        ("[access]\nsgin = true", "site.unknown_key"),
        ("[access.keys]\na = 5", "site.wrong_type"),
        ("[access.keys.a]\nsources = []", "site.missing_key"),
    ],
)
def test_what_is_wrong_is_reported_with_place_and_hint(text: str, code: str) -> None:
    (problem,) = faults(text)
    assert problem.code == code
    assert problem.line
    assert problem.hint


def test_a_secret_written_out_is_not_repeated() -> None:
    for text in (
        f'[access.a]\ntoken = "{TOKEN}"',
        f'[access.a]\ntokens = ["env:A", "{TOKEN}"]',
        f'[access.a]\ntokens = [["{TOKEN}"]]',
    ):
        problems = faults(text)
        assert problems
        assert TOKEN not in "".join(problem.as_text() for problem in problems)


_VALUES = st.recursive(
    st.booleans() | st.integers() | st.text("abc:*.", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["token", "tokens", "publish", "keys", "key", "local", "x"]), inner
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["access", "node"]), _VALUES))
def test_no_table_makes_reading_fail(values: dict[str, object]) -> None:
    file = TomlFile("site.toml", "", values)
    access, _problems = access_from_site(file)
    access.rights()


def test_checking_a_site_warns_of_secrets_that_are_not_here_and_refuses_weak_ones(
    tmp_path: Path,
) -> None:
    (tmp_path / "boss.token").write_text("password")
    (tmp_path / "door.pub").write_text("no key")
    found = {(p.code, p.severity) for p in check_access(site(WHOLE), tmp_path)}
    assert found == {
        ("settings.no_secret", "warning"),
        ("access.weak_token", "error"),
        ("signature.bad_key", "error"),
        ("access.nobody_takes", "hint"),
    }


def test_a_site_where_readers_but_nobody_takes_gets_a_hint_until_one_may(tmp_path: Path) -> None:
    reader = '[access.local]\nsubscribe = ["*"]\n'
    (found,) = check_access(site(reader), tmp_path)
    assert (found.code, found.severity) == ("access.nobody_takes", "hint")
    assert check_access(site(reader + 'take = ["jobs"]\n'), tmp_path) == []
    (useless,) = check_access(site('[access.local]\ntake = ["jobs"]\n'), tmp_path)
    assert (useless.code, useless.severity) == ("access.useless_right", "warning")


# --- tokens ---


def test_tokens_are_found_by_digest_and_can_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_token(), new_token()
    (tmp_path / "a.token").write_text(first + "\n")
    monkeypatch.setenv("SECOND", second)
    book = read_tokens([("a", "file:a.token"), ("a", "env:SECOND")], tmp_path)
    assert book.find(first) == book.find(second) == "a"
    assert book.find(first[:-1]) is None
    assert book.find("") is None
    assert first not in repr(book) + repr(vars(book))


def test_two_identities_cannot_have_one_token() -> None:
    book = TokenDirectory().with_token("a", TOKEN)
    assert len(book.with_token("a", TOKEN)) == 1
    with pytest.raises(InvalidInput) as caught:
        book.with_token("b", TOKEN)
    assert caught.value.code == "access.shared_token"
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["", "secret", "a" * 40, "x" * 600, TOKEN + " x", TOKEN + "é"])
def test_tokens_that_people_think_of_are_refused_without_repeating_them(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_token(token, whose="a")
    assert caught.value.code == "access.weak_token"
    assert not token or token not in str(caught.value)


def test_a_token_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.token").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput) as caught:
        read_tokens([("a", "file:a.token")], tmp_path)
    assert caught.value.code == "settings.no_secret"


def test_the_nodes_own_token_is_as_strong_as_the_others(tmp_path: Path) -> None:
    assert read_node_token("", tmp_path) == ""
    (tmp_path / "token").write_text("secret")
    with pytest.raises(InvalidInput) as caught:
        read_node_token("token", tmp_path)
    assert caught.value.code == "access.weak_token"
    (tmp_path / "token").write_text(TOKEN)
    assert read_node_token("token", tmp_path) == TOKEN


def test_access_opens_only_when_all_of_it_is_sound(tmp_path: Path) -> None:
    with pytest.raises(SiteError):
        load_access(site("[access]\nsgin = true"))
    with pytest.raises(InvalidInput) as caught:
        open_admission(load_access(site('[access.a]\ntoken = "file:no"')), tmp_path)
    assert caught.value.code == "settings.no_secret"


@pytest.mark.parametrize("name", ["", "node", "local", "keys", "../x", "A", "a" * 65])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_identity_name(name)


# --- rates ---


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=60))
def test_over_time_no_more_passes_than_rate_burst_and_one_batch(
    steps: list[tuple[int, int]],
) -> None:
    rate, burst = 100, 100
    bucket, now_ms, passed, largest = full_bucket(burst, 0), 0, 0, 0
    for pause_ms, count in steps:
        now_ms += pause_ms
        wait_ms = take(bucket, count, rate=rate, burst=burst, now_ms=now_ms)
        if wait_ms == 0:
            passed += count
            largest = max(largest, count)
        else:
            later = Bucket(bucket.level, bucket.at_ms)
            assert take(later, 1, rate=rate, burst=burst, now_ms=now_ms + wait_ms) == 0
    assert passed <= burst + rate * now_ms / 1_000 + largest


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = full_bucket(1, 1_000)
    assert take(bucket, 5, rate=1, burst=1, now_ms=500) == 0
    assert take(bucket, 1, rate=1, burst=1, now_ms=400) > 0


def test_only_who_has_a_rate_is_held_to_it() -> None:
    rates = Rates({"gateway": 10})
    for _ in range(100):
        rates.charge("boss", 1_000, 0)
    rates.charge("gateway", 50, 0)
    with pytest.raises(TooFast) as caught:
        rates.charge("gateway", 1, 1_000)
    assert caught.value.status == 429
    assert 2.9 < caught.value.retry_after_seconds < 3.1
    rates.charge("gateway", 1, 5_000)


def test_an_address_that_keeps_failing_has_to_wait_and_memory_is_bounded() -> None:
    failures = FailedAttempts(most_addresses=2)
    for _ in range(20):
        failures.note("10.0.0.1", 0)
    with pytest.raises(TooFast) as caught:
        failures.note("10.0.0.1", 0)
    assert caught.value.code == "access.too_many_failures"
    failures.note("10.0.0.1", 2_000)
    for address in ("a", "b", "c"):
        failures.note(address, 2_000)
    assert len(failures._buckets) == 2


# --- keys ---


def test_the_node_makes_its_key_once(tmp_path: Path) -> None:
    assert find_node_key(tmp_path) is None
    made = open_node_key(tmp_path)
    assert open_node_key(tmp_path).fingerprint == made.fingerprint
    found = find_node_key(tmp_path)
    assert found is not None
    assert (found.name, found.fingerprint) == ("node", made.fingerprint)
    assert node_key_path(tmp_path).stat().st_mode & 0o777 == 0o600


def test_keys_come_from_the_site_and_from_the_node(tmp_path: Path) -> None:
    (tmp_path / "door.pub").write_text("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=")
    access, _ = access_from_site(site(WHOLE))
    ring = open_keys(access, tmp_path, open_node_key(tmp_path))
    assert [key.name for key in ring.by_name()] == ["door", "gateway", "node"]
    (tmp_path / "door.pub").unlink()
    with pytest.raises(InvalidInput) as caught:
        open_keys(access, tmp_path, None)
    assert caught.value.code == "signature.no_key"
