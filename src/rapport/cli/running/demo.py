"""`rapport demo`: the scenarios end to end, and what to try next. [PO-17, UX-1]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from rapport.cli.terminal import show_table, stdout
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.telemetry import configure_logs

if TYPE_CHECKING:
    from rapport.scenarios.secure_building.play import Played, Stage

_PORT = 8484

Scenario = Literal["secure-building", "dangerous-goods"]

app = App(name="demo", help="Play a scenario end to end, or make up a history.")
app.command(
    "rapport.cli.backtesting.year:year", name="year", help="Make up a history to back-test."
)


@app.default
def demo(
    scenario: Annotated[Scenario, Parameter(help="What to play.")] = "secure-building",
    *,
    keep: Annotated[bool, Parameter(help="Stay up afterwards.")] = False,
    spark: Annotated[bool, Parameter(help="End with the report on Spark.")] = True,
) -> int:
    """Play a scenario: sensors that disagree, alarms, mails, answers, the report on Spark."""
    from rapport.cli.running.scenario import dangerous_goods

    configure_logs(level="WARNING")
    with tempfile.TemporaryDirectory(prefix="rapport-demo-") as directory:
        site = Path(directory) / "site"
        if scenario == "dangerous-goods":
            return asyncio.run(dangerous_goods(site, port=_PORT, keep=keep))
        return asyncio.run(_secure_building(site, keep, spark))


async def _secure_building(site: Path, keep: bool, spark: bool) -> int:
    from rapport.scenarios.secure_building.play import play, stage

    clock, out = SystemClock(), stdout()

    def tell(line: str) -> None:
        out.print(f"  [dim]{format_time(clock.now_ms())[11:19]}[/dim]  {line}")

    _introduce()
    async with stage(site, clock, tell, port=_PORT if keep else 0) as scene:
        tell(f"a node is up at {scene.url}: badge readers and cameras report over HTTP")
        played = await play(scene, clock, tell)
        _show(played)
        await _show_chain(scene, played)
        if spark:
            await _show_report(site)
        _show_next(scene, site, keep)
        if keep:
            await asyncio.Event().wait()
    return 0 if played.as_expected() else 1


def _introduce() -> None:
    from rapport.scenarios.secure_building.scenes import scenes

    show_table(
        "The scenes, all played at once (a guest may not be alone in a restricted room for 5 s)",
        ("scene", "deserves"),
        [(scene.title, scene.verdict) for scene in scenes()],
    )


def _show(played: Played) -> None:
    show_table(
        "Alarms raised: as they should be"
        if played.as_expected()
        else "Alarms raised: NOT as expected",
        ("when", "guest", "room", "because of readings"),
        [
            (
                format_time(found.time)[11:23],
                found.bindings["A"],
                found.bindings["R"],
                ", ".join(cause[:12] for _, cause in found.causes),
            )
            for found in played.detections
        ],
    )
    show_table(
        "Undecided: nobody can tell, so nobody is woken",
        ("when", "guest", "room", "silent source"),
        [
            (
                format_time(found.time)[11:23],
                found.bindings["A"],
                found.bindings["R"],
                ", ".join(found.silent),
            )
            for found in played.undecided
        ],
    )
    show_table(
        "The ledger: who was told, who answered",
        ("person", "address", "state", "message"),
        [
            (
                row.peer,
                row.address or "-",
                row.state + (f": {row.answer}" if row.answer else ""),
                row.message[:12],
            )
            for row in played.ledger
            if row.peer
        ],
    )


async def _show_chain(scene: Stage, played: Played) -> None:
    from rapport.channel.finding.causes import cause_tree
    from rapport.cli.explaining.explain import branch

    if played.messages:
        stdout().print("\n[bold]Why was this message sent?[/bold]  (rapport explain)")
        stdout().print(branch(await cause_tree(scene.node.channels, played.messages[0])))


async def _show_report(site: Path) -> None:
    """Spark runs in its own process, beside the node."""
    stdout().print("\n[bold]The same from history, on Spark[/bold]  (rapport pipeline report)")
    command = [sys.executable, "-m", "rapport.cli.main", "pipeline", "report", "--site", str(site)]
    quick = {"RAPPORT_SPARK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = await asyncio.to_thread(
        subprocess.run, command, check=False, env={**os.environ, **quick}
    )
    if done.returncode:
        stdout().print(
            "[yellow]the Spark report could not be made; the lines above say why[/yellow]"
        )


def _show_next(scene: Stage, site: Path, keep: bool) -> None:
    out = stdout()
    out.print("\n[bold]What to try next[/bold]")
    if keep:
        out.print(f"  open {scene.url} in a browser; stop with Ctrl-C", soft_wrap=True)
        out.print(f"  ./run rapport ledger --site {site}", soft_wrap=True)
    out.print("  ./run demo --keep                       a live page, and time to look around")
    out.print("  ./run rapport demo dangerous-goods      substances too near each other on a truck")
    out.print("  ./run rapport init my-site              a site of your own to change")
    out.print("  ./run rapport replay --site tests/data/checks/secure-building")
