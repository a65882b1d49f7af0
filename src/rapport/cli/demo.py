"""`rapport demo`: plays a scenario end to end and suggests next steps. [PO-17, UX-1]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.text import Text

from rapport.cli.arguments import lab_command
from rapport.cli.output import show_table, stdout
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.telemetry import configure_logs

if TYPE_CHECKING:
    from rapport.communication.ledger_rows import MessageRow
    from rapport.scenarios.dangerous_goods import goods_play as goods
    from rapport.scenarios.secure_building.building_play import BuildingRun, BuildingStage

_PORT = 8484

Scenario = Literal["secure-building", "dangerous-goods"]

app = App(name="demo", help="Play a scenario end to end, or make up a history.")
app.command("rapport.cli.backtest:year", name="year", help="Make up a history to back-test.")
app.command(
    lab_command("rapport_lab.commands.cars:cars"),
    name="car-sharing",
    help="Play car sharing; see it on a map.",
)


@app.default
def demo(
    scenario: Annotated[Scenario, Parameter(help="What to play.")] = "secure-building",
    *,
    keep: Annotated[bool, Parameter(help="Stay up afterwards.")] = False,
    spark: Annotated[bool, Parameter(help="End with the report on Spark.")] = True,
) -> int:
    """Play a scenario: sensors that disagree, alarms, mails, answers, the report on Spark."""

    configure_logs(level="WARNING")
    with tempfile.TemporaryDirectory(prefix="rapport-demo-") as directory:
        site = Path(directory) / "site"
        if scenario == "dangerous-goods":
            return asyncio.run(dangerous_goods(site, port=_PORT, keep=keep))
        return asyncio.run(_secure_building(site, keep, spark))


async def _secure_building(site: Path, keep: bool, spark: bool) -> int:
    from rapport.scenarios.secure_building.building_play import play, stage

    clock, out = SystemClock(), stdout()

    def tell(line: str) -> None:
        out.print(f"  [dim]{format_time(clock.now_ms())[11:19]}[/dim]  {line}")

    out.print(
        "[bold]A guest may not be alone in a restricted room for 5 s.[/bold] Eight scenes at once; "
        "badge readers, cameras and a door log disagree about units and coordinates.",
        soft_wrap=True,
    )
    async with stage(site, clock, tell, port=_PORT if keep else 0) as scene:
        tell(f"a node is up at {scene.url}")
        played = await play(scene, clock, tell)
        report = None
        if spark:
            tell("Spark reports what happened, from history")
            report = await asyncio.to_thread(_write_report, site)
        _show(played)
        _show_next(scene, played, site, report, keep=keep)
        if keep:
            await asyncio.Event().wait()
    return 0 if played.as_expected() else 1


def _show(played: BuildingRun) -> None:
    """What came of the scenes: each alarm with who answered it."""
    out, alarms = stdout(), len(played.detections)
    verdict = "as it should be" if played.as_expected() else "NOT as it should be"
    out.print(f"\n[bold]{alarms} alarms, {verdict}[/bold]")
    for row in played.sent:
        when, text = format_time(row.time)[11:19], Text(row.text)
        out.print(f"  [dim]{when}[/dim] ", text, " [dim]->[/dim] ", _answer_to(row, played), sep="")
    for one in played.undecided:
        guest, room, silent = one.bindings["A"], one.bindings["R"], ", ".join(one.silent)
        out.print(
            f"  [dim]undecided[/dim] {guest} in {room}: {silent} was silent, so nobody was woken"
        )


def _answer_to(alarm: MessageRow, played: BuildingRun) -> str:
    if alarm.answered_by:
        after = (alarm.answered_at - alarm.time) / 1_000
        return f"{alarm.answered_by} answered after {after:.0f} s: {alarm.answer}"
    rows = [row for row in played.ledger if row.message == alarm.message and row.peer]
    receivers = ", ".join(
        sorted({row.peer for row in rows if row.receiver not in ("", alarm.receiver)})
    )
    return (
        f"nobody answered in time, so {receivers} was asked" if receivers else "nobody answered yet"
    )


def _write_report(site: Path) -> Path | None:
    """The page that Spark makes of the history, in its own process beside the node."""
    handle, name = tempfile.mkstemp(prefix="rapport-demo-", suffix=".html")
    os.close(handle)
    command = [sys.executable, "-m", "rapport.cli.main", "pipeline", "report"]
    command += ["--site", str(site), "--html", name]
    quick = {"RAPPORT_SPARK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        command, check=False, env={**os.environ, **quick}, capture_output=True, text=True
    )
    if done.returncode == 0:
        return Path(name)
    Path(name).unlink(missing_ok=True)
    stdout().print("[yellow]the report on Spark could not be made:[/yellow]")
    stdout().print(Text(done.stderr.strip()[-1_000:]))
    return None


def _show_next(
    scene: BuildingStage, played: BuildingRun, site: Path, report: Path | None, *, keep: bool
) -> None:
    rows = [
        ("./run demo --keep", "a live page, and time to look around"),
        ("./run rapport init my-site", "a site of your own; --template home, air, duty, empty"),
        ("./run rapport demo dangerous-goods", "substances too near each other on a truck"),
    ]
    if keep:
        rows[0] = (scene.url, "the live page; stop with Ctrl-C")
        rows.insert(1, (f"./run rapport ledger --site {site}", "who was reached, who answered"))
        if played.sent:
            alarm = played.sent[0].message
            rows.insert(2, (f"./run rapport explain {alarm} --site {site}", "why, to the reading"))
    if report is not None:
        rows.insert(0, (str(report), "what happened, reported by Spark: open it in a browser"))
    stdout().print("\n[bold]Where to look[/bold]")
    width = max(len(command) for command, _what in rows)
    for command, what in rows:
        stdout().print(f"  {command:<{width}}  [dim]{what}[/dim]", soft_wrap=True)


async def dangerous_goods(site: Path, *, port: int, keep: bool) -> int:
    """Plays the scenes against a node of their own; 0 when headquarters got the right mails."""
    from rapport.scenarios.dangerous_goods.goods_play import play, stage

    clock, out = SystemClock(), stdout()

    def tell(line: str) -> None:
        out.print(f"  [dim]{format_time(clock.now_ms())[11:19]}[/dim]  {line}")

    _introduce()
    async with stage(site, clock, port=port if keep else 0) as scene:
        tell(f"a node is up at {scene.url}: trackers of two brands report over HTTP")
        played = await play(scene, clock, tell)
        _show_scenario(played)
        await _show_chain(scene, played)
        if keep:
            out.print(f"\nopen {scene.url} in a browser; stop with Ctrl-C", soft_wrap=True)
            await asyncio.Event().wait()
    return 0 if played.as_expected() else 1


def _introduce() -> None:
    from rapport.scenarios.dangerous_goods.goods_scenes import scenes

    show_table(
        "The scenes, all played at once (a distance for each pair of substances)",
        ("scene", "deserves"),
        [(scene.title, scene.verdict) for scene in scenes()],
    )


def _show_scenario(played: goods.GoodsRun) -> None:
    verdict = "as they should be" if played.as_expected() else "NOT as expected"
    show_table(
        f"Found: {verdict} ({played.left_out} repetitions left out)",
        ("when", "policy", "substances", "truck"),
        [
            (
                format_time(found.time)[11:23],
                found.policy,
                f"{found.bindings['A']}, {found.bindings['B']}",
                found.bindings["T"],
            )
            for found in played.detections
        ],
    )
    show_table("Mails to headquarters", ("by mail to", "subject"), played.mails)


async def _show_chain(scene: goods.GoodsStage, played: goods.GoodsRun) -> None:
    from rapport.channel.event_lookup import cause_tree
    from rapport.cli.explain import branch

    if played.messages:
        stdout().print("\n[bold]Why was this message sent?[/bold]  (rapport explain)")
        stdout().print(branch(await cause_tree(scene.node.channels, played.messages[0])))
