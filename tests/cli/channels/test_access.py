import json
import stat
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.cli.node_api import Remote
from rapport.core.errors import InvalidInput

ACCESS = """
[access.gateway]
token = "file:secrets/gateway.token"
publish = ["raw.*"]
subscribe = ["detections"]
rate = 1000
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(ACCESS)
    return tmp_path


def test_a_new_token_goes_to_a_file_for_its_owner_and_is_not_printed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["access", "token", "reader", "--site", str(site)]) == 0
    file = site / "secrets" / "reader.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = capsys.readouterr()
    assert '[access.reader]\ntoken = "file:secrets/reader.token"' in said.out
    assert file.read_text().strip() not in said.out + said.err
    assert len(file.read_text().strip()) == 43


def test_a_second_token_stands_beside_the_first_while_they_are_exchanged(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["access", "token", "gateway", "--site", str(site)]) == 0
    out = capsys.readouterr().out
    assert 'tokens = ["file:secrets/gateway.token", "file:secrets/gateway-2.token"]' in out
    first, second = (site / "secrets").iterdir()
    assert first.read_text() != second.read_text()
    again = ["access", "token", "gateway", "--site", str(site), "--file", f"secrets/{first.name}"]
    assert run(again) == 1
    assert "access.file_exists" in capsys.readouterr().err


def test_names_that_mean_something_else_get_no_token(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("local", "node", "keys", "../x"):
        assert run(["access", "token", name, "--site", str(site)]) == 2
        assert "access.bad_name" in capsys.readouterr().err
    assert not (site / "secrets").exists()


def test_identities_are_listed_with_their_rights(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["access", "list", "--site", str(site)]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = ["gateway", "raw.*", "detections", "-", "no", "1000/s", "file:secrets/gateway.token"]
    assert lines[1].split("\t") == wanted
    assert run(["access", "list", "--site", str(site), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["identity"] for row in rows] == ["gateway", "node"]
    assert rows[1]["admin"] is True


@pytest.mark.parametrize(
    ("question", "code", "said"),
    [
        (["gateway", "publish", "raw.doors"], 0, "yes"),
        (["gateway", "publish", "mine"], 1, "no"),
        (["gateway", "subscribe", "detections"], 0, "yes"),
        (["gateway", "take", "detections"], 1, "no"),
        (["node", "take", "detections"], 0, "yes"),
        (["gateway", "admin"], 1, "no"),
        (["node", "admin"], 0, "yes"),
        (["gatway", "admin"], 2, ""),
        (["gateway", "publish"], 2, ""),
        (["gateway", "write", "x"], 2, ""),
    ],
)
def test_a_right_can_be_asked_for(
    question: list[str], code: int, said: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["access", "check", *question, "--site", str(site)]) == code
    assert capsys.readouterr().out.strip() == said


def test_a_key_is_made_and_the_line_for_the_site_printed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["access", "make-key", str(site / "door.pem")]) == 0
    assert stat.S_IMODE((site / "door.pem").stat().st_mode) == 0o600
    line = capsys.readouterr().out
    (site / "site.toml").write_text(ACCESS + line)
    assert run(["access", "keys", "--site", str(site), "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert key["name"] == "door"
    assert key["fingerprint"] in line


def test_a_faulty_table_is_told_with_its_place(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "site.toml").write_text(ACCESS.replace("publish", "pubish"))
    assert run(["access", "list", "--site", str(site)]) == 1
    assert "site.toml:4" in capsys.readouterr().err


def test_a_token_comes_from_the_flag_then_the_environment_then_the_site(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "node.token").write_text("of the node\n")
    (site / "own.token").write_text("of the flag\n")
    (site / "site.toml").write_text('[node]\ntoken_file = "node.token"\n' + ACCESS)
    monkeypatch.delenv("RAPPORT_TOKEN", raising=False)
    assert Remote.of_site(site, None).token == "of the node"
    monkeypatch.setenv("RAPPORT_TOKEN", "of the environment")
    assert Remote.of_site(site, None).token == "of the environment"
    assert Remote.of_site(site, None, site / "own.token").token == "of the flag"
    with pytest.raises(InvalidInput) as caught:
        Remote.of_site(site, None, site / "absent.token")
    assert caught.value.code == "cli.no_file"
