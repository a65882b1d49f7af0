"""Changes of the lake happen whole or not at all, whenever the process is killed. [PI-3, PI-10]

A job prepares files under `.work/`, where no reader looks. Then one file says what is to be moved
where; from that moment the change happens, if need be at the next start: every step can be done
twice. A partition's folder is exchanged with its successor in one step of the file system, so a
reader sees the old files or the new ones.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from rapport.channel.export.parquet_files import make_directory, replaced_file
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.ids import content_id
from rapport.kernel.files import sync_path
from rapport.pipeline.lake.locks import moving, working
from rapport.pipeline.lake.places import WORK

_COMMIT = "commit.json"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)

Step = Callable[[str], None]
"""Called between any two steps of a change; tests stop there as a kill would."""


def no_step(_name: str) -> None:
    """What is called when nobody wants to stop."""


class Place(msgspec.Struct, frozen=True):
    """A prepared file takes its place, maybe that of an older one of the same name."""

    prepared: str
    final: str


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared folder takes the place of another, whose files in `replaced` go. What else lies
    there, such as a file that came meanwhile, stays.
    """

    prepared: str
    final: str
    inode: int
    """Of the prepared folder: where it is tells whether the exchange was done."""
    replaced: tuple[str, ...]


class Removal(msgspec.Struct, frozen=True):
    """Files of a folder go, and with the last one the folder."""

    folder: str
    files: tuple[str, ...]


class Change(msgspec.Struct, kw_only=True):
    """What is moved where; paths are relative to the lake."""

    places: list[Place] = []
    exchanges: list[Exchange] = []
    removals: list[Removal] = []


class Work:
    """A change being prepared; `changing` gives it to one job at a time."""

    def __init__(self, lake: Path, step: Step = no_step) -> None:
        self.lake, self._step = lake, step
        self._change = Change()
        self._count = 0

    def path(self, name: str) -> Path:
        """A place to prepare a file or folder; its folder exists."""
        self._count += 1
        path = self.lake / WORK / "prepared" / f"{self._count:06d}" / name
        make_directory(path.parent)
        return path

    def place(self, prepared: Path, final: Path) -> None:
        """The prepared file, made durable here, will stand at `final`."""
        sync_path(prepared)
        self._change.places.append(Place(self._name(prepared), self._name(final)))

    def exchange(self, prepared: Path, final: Path, replaced: Iterable[str]) -> None:
        """The prepared folder will stand at `final`; the files named in `replaced` go."""
        for path in prepared.iterdir():
            sync_path(path)
        sync_path(prepared)
        self._change.exchanges.append(
            Exchange(
                prepared=self._name(prepared),
                final=self._name(final),
                inode=prepared.stat().st_ino,
                replaced=tuple(replaced),
            )
        )

    def remove(self, folder: Path, files: Iterable[str]) -> None:
        """The files of the folder will go."""
        self._change.removals.append(Removal(self._name(folder), tuple(files)))

    def commit(self) -> None:
        """Lets everything happen that was prepared; then the work can go on with another change."""
        self._step("prepared")
        with replaced_file(self.lake / WORK / _COMMIT) as temporary:
            temporary.write_bytes(msgspec.json.encode(self._change))
        self._step("announced")
        _carry_out(self.lake, self._change, self._step)
        self._change = Change()
        shutil.rmtree(self.lake / WORK / "prepared", ignore_errors=True)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.lake))


@contextmanager
def changing(lake: Path, step: Step = no_step) -> Iterator[Work]:
    """The right to change the lake, one job at a time; begins by finishing or clearing away what a
    killed job left. Raises Conflict while another job works, StoreUnavailable when the disk
    refuses: what was announced then happens at the next start.
    """
    try:
        with working(lake):
            with moving(lake) if _touches_bronze(lake) else nullcontext():
                recover(lake, step)
            yield Work(lake, step)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot change the lake {lake}: {error.strerror or error}", code="lake.unavailable"
        ) from error


def recover(lake: Path, step: Step = no_step) -> bool:
    """Finishes a change that was announced and clears away what was only prepared; says whether
    there was one to finish.
    """
    path = lake / WORK / _COMMIT
    announced = path.exists()
    if announced:
        try:
            change = msgspec.json.decode(path.read_bytes(), type=Change)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Corrupt(
                f"{path} cannot be read: {error}",
                code="lake.bad_journal",
                hint="an unfinished change of the lake stands there; restore it from a backup",
            ) from None
        _carry_out(lake, change, step)
    if (lake / WORK).exists():
        shutil.rmtree(lake / WORK)
    return announced


def _touches_bronze(lake: Path) -> bool:
    """Whether a change that is to be finished moves files of bronze, so that exports must rest."""
    path = lake / WORK / _COMMIT
    return path.exists() and b'"bronze/' in path.read_bytes()


def _carry_out(lake: Path, change: Change, step: Step) -> None:
    """Every step may have been done before."""
    touched: set[Path] = set()
    for place in change.places:
        prepared, final = lake / place.prepared, lake / place.final
        if prepared.exists():
            make_directory(final.parent)
            prepared.rename(final)
            touched.add(final.parent)
        step("placed")
    for exchange in change.exchanges:
        _exchange(lake, exchange, step)
        touched.add((lake / exchange.final).parent)
    for removal in change.removals:
        _remove(lake, removal, step)
    for folder in touched:
        sync_path(folder)
    step("carried out")
    (lake / WORK / _COMMIT).unlink(missing_ok=True)
    sync_path(lake / WORK)
    step("confirmed")


def _exchange(lake: Path, exchange: Exchange, step: Step) -> None:
    prepared, final = lake / exchange.prepared, lake / exchange.final
    if not final.exists():
        prepared.rename(final)
    elif final.stat().st_ino != exchange.inode:
        exchange_folders(prepared, final)
    step("exchanged")
    aside = _aside(prepared)
    if aside.exists() and not prepared.exists():
        aside.rename(prepared)
    if not prepared.exists():
        return
    for path in prepared.iterdir():  # now the old folder
        if path.name not in exchange.replaced and not (final / path.name).exists():
            path.rename(final / path.name)
    step("carried over")
    shutil.rmtree(prepared)


def exchange_folders(one: Path, other: Path) -> None:
    """Exchanges two folders, at once where the system can; else in two steps, between which `other`
    is missing.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and not rename(
        _HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE
    ):
        return
    aside = _aside(one)
    other.rename(aside)
    one.rename(other)
    aside.rename(one)


def _aside(folder: Path) -> Path:
    """Where the old folder waits when folders cannot be exchanged at once."""
    return folder.with_name(f"{folder.name}.aside")


def _remove(lake: Path, removal: Removal, step: Step) -> None:
    folder = lake / removal.folder
    if not folder.exists():
        _remove_empty(folder.parent, lake)  # a kill may have come between
        return
    if {path.name for path in folder.iterdir()} <= set(removal.files):
        # A day goes at once: nobody sees half of it.
        # Names of folders may be as long as the system allows: together they are too long for one.
        away = lake / WORK / "gone" / content_id(removal.folder)
        make_directory(away.parent)
        folder.rename(away)
        step("moved away")
        shutil.rmtree(away)
    else:
        for name in removal.files:
            (folder / name).unlink(missing_ok=True)
    step("removed")
    _remove_empty(folder.parent, lake)


def _remove_empty(folder: Path, lake: Path) -> None:
    """Folders of partitions whose last file has gone; some of them may have gone before."""
    while folder != lake and "=" in folder.name:
        if folder.exists():
            if any(folder.iterdir()):
                return
            folder.rmdir()
        folder = folder.parent
