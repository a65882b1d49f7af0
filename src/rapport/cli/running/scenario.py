"""`rapport demo dangerous-goods`: substances too near each other, and who is told. [PO-17, UX-1]"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rapport.cli.terminal import show_table, stdout
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from rapport.scenarios.dangerous_goods.goods_play import GoodsRun, GoodsStage


async def dangerous_goods(site: Path, *, port: int, keep: bool) -> int:
    """Plays the scenes against a node of their own; 0 when headquarters was told what it should."""
    from rapport.scenarios.dangerous_goods.goods_play import play, stage

    clock, out = SystemClock(), stdout()

    def tell(line: str) -> None:
        out.print(f"  [dim]{format_time(clock.now_ms())[11:19]}[/dim]  {line}")

    _introduce()
    async with stage(site, clock, port=port if keep else 0) as scene:
        tell(f"a node is up at {scene.url}: trackers of two brands report over HTTP")
        played = await play(scene, clock, tell)
        _show(played)
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


def _show(played: GoodsRun) -> None:
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
    show_table("Headquarters was told", ("by mail to", "subject"), played.mails)


async def _show_chain(scene: GoodsStage, played: GoodsRun) -> None:
    from rapport.channel.event_lookup import cause_tree
    from rapport.cli.explaining.explain import branch

    if played.messages:
        stdout().print("\n[bold]Why was this message sent?[/bold]  (rapport explain)")
        stdout().print(branch(await cause_tree(scene.node.channels, played.messages[0])))
