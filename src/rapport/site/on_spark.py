"""Which policies a site lets run on Spark: `[policies] on_spark`. [PO-8, UX-2]"""

from __future__ import annotations

from rapport.core.errors import Problem, nearest_names
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile
from rapport.policy.engine.spark_policies import ALL, SparkPolicies
from rapport.policy.lifecycle.record import stop_of
from rapport.site.parts import SiteParts
from rapport.site.policies import policy_files

KEY = "on_spark"


def on_spark_of(file: TomlFile) -> tuple[str, ...]:
    """The names of those policies, or `*` for all; what is wrong is told by `check_on_spark`."""
    return Fields(file.section("policies"), []).texts(KEY, (), example='["*"]')


def check_on_spark(parts: SiteParts) -> list[Problem]:
    """Names nobody has are warnings, since policies can be registered later. A policy that stops
    others does that at a place of the stream, which only the node knows.
    """
    problems: list[Problem] = []
    fields = Fields(parts.file.section("policies"), problems)
    names = fields.texts(KEY, (), example='["*"]')
    files, _window, _problems = policy_files(parts.file, parts.directory)
    for name in names:
        if name not in files and name not in parts.policies and name != ALL:
            near = nearest_names(name, list(files), limit=1)
            hint = f"did you mean {near[0]!r}?" if near else "it may be registered later"
            message = f"there is no policy named {name!r} to run on Spark"
            fields.fault(KEY, "site.unknown_policy", message, hint=hint, severity="warning")
    chosen = SparkPolicies(names)
    for name, compiled in parts.policies.items():
        stops = [phrase for phrase in compiled.plan.actions if stop_of(phrase) is not None]
        if stops and name in chosen:
            message = f"policy {name!r} says {stops[0]!r}: that is done in the node only"
            hint = f"name the policies that run on Spark one by one, without {name!r}"
            fields.fault(KEY, "policy.not_on_spark", message, hint=hint)
    return problems
