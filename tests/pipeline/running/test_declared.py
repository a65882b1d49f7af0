"""`[pipeline]` of a site."""

from __future__ import annotations

from pathlib import Path

from rapport.kernel.toml import TomlFile
from rapport.site.pipeline import PipelineSettings, pipeline_settings


def declared(directory: Path, text: str) -> tuple[PipelineSettings, list[str]]:
    path = directory / "site.toml"
    path.write_text(text, encoding="utf-8")
    settings, problems = pipeline_settings(TomlFile.load(path))
    return settings, [f"{one.line}: {one.code}" for one in problems]


def test_a_site_says_nothing_or_all_of_it(tmp_path: Path) -> None:
    assert declared(tmp_path, "") == (PipelineSettings(), [])
    text = (
        '[pipeline]\non = true\nevery = "10s"\nfigures_every = "1 hour"\nlive = false\nbuckets = 4'
    )
    assert declared(tmp_path, text) == (
        PipelineSettings(
            on=True, every_ms=10_000, figures_every_ms=3_600_000, live=False, buckets=4
        ),
        [],
    )


def test_how_long_the_lake_is_kept(tmp_path: Path) -> None:
    text = '[pipeline.keep]\n"bronze/raw.*" = 30\nsilver = 365'
    settings, problems = declared(tmp_path, text)
    assert settings.keep == {"bronze/raw.*": 30, "silver": 365}
    assert problems == []
    _, problems = declared(tmp_path, '[pipeline.keep]\niron = 3\nsilver = "long"')
    assert problems == ["2: lake.bad_rule", "3: site.wrong_type"]


def test_every_mistake_stands_at_its_line(tmp_path: Path) -> None:
    text = '[pipeline]\non = "yes"\nevery = "soon"\nfigures_every = "0s"\nbuckets = -1\neach = 1'
    settings, problems = declared(tmp_path, text)
    assert settings == PipelineSettings()
    assert problems == [
        "6: site.unknown_key",
        "2: site.wrong_type",
        "3: site.bad_duration",
        "4: site.bad_duration",
        "5: site.out_of_range",
    ]
