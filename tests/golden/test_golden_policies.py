"""Every stage of the compiler against golden files."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rapport.core.errors import PolicyError, Problem
from rapport.policy.compiler.compile import CompiledSituation, compile_conditions, compile_policy
from rapport.policy.compiler.normal_form import ecnf_text
from rapport.policy.compiler.plan_text import plan_text
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.situation_printer import print_situation
from rapport.policy.ontology import Ontology
from rapport.policy.plan import decode_plan, encode_plan

FOLDER = Path(__file__).parent / "policy"
SITUATIONS = Path(__file__).parents[1] / "data" / "situations"
Compare = Callable[[Path, Callable[[dict[str, str]], str]], None]


def files(stage: str) -> list[object]:
    return [pytest.param(path, id=path.stem) for path in sorted((FOLDER / stage).glob("*.txt"))]


def shown(problem: Problem) -> str:
    assert problem.hint, f"{problem.code} has no hint"
    lines = [f"{problem.severity} {problem.code} at {problem.file}:{problem.line}:{problem.column}"]
    lines.append(problem.message)
    lines += [problem.excerpt] if problem.excerpt else []
    lines += [f"hint: {problem.hint}"] if problem.hint else []
    return "\n".join(lines)


@pytest.mark.parametrize("path", files("printed"))
def test_a_policy_is_printed_in_canonical_form(path: Path, compare: Compare) -> None:
    compare(path, lambda parts: print_policy(parse_policy(parts["policy"], name="golden")))


@pytest.mark.parametrize("path", files("normalize"))
def test_a_condition_is_brought_into_ecnf(path: Path, compare: Compare, ontology: Ontology) -> None:
    def produce(parts: dict[str, str]) -> str:
        text = parts["policy"]
        compiled = compile_conditions(text, name="golden", ontology=ontology, window_ms=5000)
        return ecnf_text(compiled.ecnf)

    compare(path, produce)


@pytest.mark.parametrize("path", files("logic_tree"))
def test_a_logic_tree_is_built(path: Path, compare: Compare, ontology: Ontology) -> None:
    def produce(parts: dict[str, str]) -> str:
        text = parts["policy"]
        compiled = compile_conditions(text, name="golden", ontology=ontology, window_ms=5000)
        assert 3 <= compiled.logic_tree.height() <= 5
        return compiled.logic_tree.text()

    compare(path, produce)


@pytest.mark.parametrize("path", files("plan"))
def test_a_plan_is_made(path: Path, compare: Compare, ontology: Ontology) -> None:
    def produce(parts: dict[str, str]) -> str:
        plan = compile_policy(
            parts["policy"], name="golden", ontology=ontology, window_ms=5000
        ).plan
        return plan_text(plan)

    compare(path, produce)


@pytest.mark.parametrize("path", files("stages"))
def test_every_stage_of_a_policy_of_every_form(
    path: Path, compare: Compare, every_form: Ontology
) -> None:
    def produce(parts: dict[str, str]) -> str:
        compiled = compile_conditions(
            parts["policy"], name=path.stem, ontology=every_form, window_ms=5000
        )
        assert 3 <= compiled.logic_tree.height() <= 5
        assert decode_plan(encode_plan(compiled.plan)) == compiled.plan
        stages = {
            "parsed": print_policy(compiled.tree),
            "ecnf": ecnf_text(compiled.ecnf),
            "tree": compiled.logic_tree.text(),
            "plan": plan_text(compiled.plan),
            "json": msgspec.json.format(encode_plan(compiled.plan), indent=1).decode(),
            "problems": "\n".join(shown(problem) for problem in compiled.problems),
        }
        return "\n\n".join(f"## {stage}\n{text.rstrip()}" for stage, text in stages.items())

    compare(path, produce)


@pytest.mark.parametrize("path", files("errors"))
def test_a_wrong_policy_is_refused_with_every_fault_at_its_place(
    path: Path, compare: Compare, ontology: Ontology
) -> None:
    def produce(parts: dict[str, str]) -> str:
        with pytest.raises(PolicyError) as caught:
            compile_policy(parts["policy"], name="golden", ontology=ontology, window_ms=5000)
        return "\n\n".join(shown(problem) for problem in caught.value.problems)

    compare(path, produce)


@pytest.mark.parametrize("path", files("warnings"))
def test_a_doubtful_policy_compiles_with_warnings(
    path: Path, compare: Compare, ontology: Ontology
) -> None:
    def produce(parts: dict[str, str]) -> str:
        compiled = compile_policy(parts["policy"], name="golden", ontology=ontology, window_ms=5000)
        problems = "\n\n".join(shown(problem) for problem in compiled.problems)
        return f"{problems}\n\n{plan_text(compiled.plan)}"

    compare(path, produce)


@pytest.mark.parametrize("path", files("situations"))
def test_the_plan_of_a_worked_situation(path: Path, compare: Compare, situations: Ontology) -> None:
    def produce(parts: dict[str, str]) -> str:
        text = (SITUATIONS / parts["case"].strip()).read_text(encoding="utf-8")
        compiled = compile_policy(text, name=path.stem, ontology=situations, window_ms=5000)
        assert isinstance(compiled, CompiledSituation)
        assert decode_plan(encode_plan(compiled.plan)) == compiled.plan
        stages = {
            "parsed": print_situation(compiled.tree),
            "plan": plan_text(compiled.plan),
            "json": msgspec.json.format(encode_plan(compiled.plan), indent=1).decode(),
        }
        return "\n\n".join(f"## {stage}\n{text.rstrip()}" for stage, text in stages.items())

    compare(path, produce)


def test_every_worked_situation_has_a_golden_file() -> None:
    cases = {path.stem for path in SITUATIONS.glob("*.dpl")}
    assert cases == {path.stem for path in (FOLDER / "situations").glob("*.txt")}


def test_there_are_many_wrong_policies() -> None:
    assert len(files("errors")) >= 25
