"""Wrong sites against golden files: every problem of every file, at its place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.core.errors import SiteError
from rapport.site.site import check_site, load_site

FOLDER = Path(__file__).parent / "site"
Compare = Callable[[Path, Callable[[dict[str, str]], str]], None]
FILES = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.txt"))]

SOUND = {
    "site.toml": (FOLDER / "site.toml").read_text(encoding="utf-8"),
    "persons.csv": "id,status\n1,guest\n2,employee\n",
    "rooms.csv": "id,x1,y1,x2,y2,security\nr1,0,0,10,10,restricted\n",
    "events.csv": "id,ts,person,x,y\ne1,1000,1,5,5\n",
    "watch.dpl": (
        "concepts\n  person A (status='guest')\n  room R\n"
        "conditions\n  A is inside R\nactions\n  raise alarm\n"
    ),
}


def make(directory: Path, parts: dict[str, str]) -> None:
    """A sound site, but for the parts given: `site.toml: old => new` lines change it in place."""
    files = SOUND | {name: text for name, text in parts.items() if "." in name}
    for line in parts.get("change", "").splitlines():
        old, _, new = line.partition(" => ")
        assert old in files["site.toml"], old
        files["site.toml"] = files["site.toml"].replace(old, new.replace("\\n", "\n"), 1)
    for name, text in files.items():
        if text.strip() != "(none)":
            (directory / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("path", FILES)
def test_a_wrong_site_is_told_everything_at_once(
    path: Path, compare: Compare, tmp_path: Path
) -> None:
    def produce(parts: dict[str, str]) -> str:
        make(tmp_path, parts)
        problems = check_site(tmp_path)
        assert problems
        assert all(problem.hint for problem in problems if problem.code != "site.bad_toml")
        if any(problem.severity == "error" for problem in problems):
            with pytest.raises(SiteError):
                load_site(tmp_path)
        else:
            load_site(tmp_path)
        shown = "\n\n".join(f"{p.severity} {p.code}\n{p.as_text()}" for p in problems)
        return shown.replace(str(tmp_path), "SITE")

    compare(path, produce)


def test_the_sound_site_has_no_problems(tmp_path: Path) -> None:
    make(tmp_path, {})
    assert check_site(tmp_path) == []
