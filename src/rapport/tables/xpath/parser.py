"""XPath 1.0 in its abbreviated form, parsed into a tree. [PO-2]

Offered: absolute and relative paths, `//`, `.`, `..`, `@name`, `*`, `text()`, `node()`,
predicates, unions, all operators, and the functions of the standard that need no document type.
Not offered, and refused with a reason: axes by name (`following-sibling::`) and variables.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rapport.tables.xpath.tokens import Token, fault, tokens

Axis = Literal["child", "attribute", "self", "parent", "descendant-or-self"]

FUNCTIONS: dict[str, tuple[int, int]] = {
    "last": (0, 0),
    "position": (0, 0),
    "count": (1, 1),
    "name": (0, 1),
    "local-name": (0, 1),
    "string": (0, 1),
    "concat": (2, 50),
    "starts-with": (2, 2),
    "contains": (2, 2),
    "substring-before": (2, 2),
    "substring-after": (2, 2),
    "substring": (2, 3),
    "string-length": (0, 1),
    "normalize-space": (0, 1),
    "translate": (3, 3),
    "boolean": (1, 1),
    "not": (1, 1),
    "true": (0, 0),
    "false": (0, 0),
    "number": (0, 1),
    "sum": (1, 1),
    "floor": (1, 1),
    "ceiling": (1, 1),
    "round": (1, 1),
}
"""Names with the fewest and most arguments."""

_LEVELS = (("or",), ("and",), ("=", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "div", "mod"))
_MOST_NESTED = 30
_MOST_OPERATORS = 100


class Constant(NamedTuple):
    """A number or a text."""

    value: float | str


class Step(NamedTuple):
    """`test` is a name, `prefix:name`, `*`, `text()` or `node()`."""

    axis: Axis
    test: str
    predicates: tuple[Expression, ...] = ()


class Path(NamedTuple):
    """Steps from the root, from the present node, or from what an expression gives."""

    absolute: bool
    steps: tuple[Step, ...]
    start: Expression | None = None
    filters: tuple[Expression, ...] = ()
    """Predicates of `start`."""


class Call(NamedTuple):
    """A function of the standard."""

    name: str
    arguments: tuple[Expression, ...]


class Binary(NamedTuple):
    """Two expressions and what stands between; `|` is a union."""

    operator: str
    left: Expression
    right: Expression


class Negative(NamedTuple):
    """A minus before an expression."""

    inner: Expression


Expression = Constant | Path | Call | Binary | Negative

_ANYWHERE = Step("descendant-or-self", "node()")


def parse_xpath(text: str) -> Expression:
    """The tree of an expression; raises XPathFault with the place."""
    return _Parser(tokens(text)).whole()


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, given: list[Token]) -> None:
        self._tokens, self._at, self._depth, self._operators = given, 0, 0, 0

    def whole(self) -> Expression:
        found = self._expression()
        if self._now.kind != "end":
            raise fault(f"{self._now.text!r} is too much here", self._now.at)
        return found

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _is(self, *texts: str) -> bool:
        return self._now.kind in ("symbol", "name") and self._now.text in texts

    def _take(self) -> Token:
        token = self._now
        self._at += token.kind != "end"
        return token

    def _operator(self) -> Token:
        """Counted, as evaluation goes as deep as there are operators."""
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise fault(f"there are more than {_MOST_OPERATORS} operators", self._now.at)
        return self._take()

    def _need(self, text: str) -> None:
        if not self._is(text):
            raise fault(f"{text!r} is missing", self._now.at)
        self._take()

    def _expression(self) -> Expression:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise fault("the expression is nested too deeply", self._now.at)
        found = self._level(0)
        self._depth -= 1
        return found

    def _level(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._level(level + 1)
        while self._is(*_LEVELS[level]):
            operator = self._operator().text
            left = Binary(operator, left, self._level(level + 1))
        return left

    def _unary(self) -> Expression:
        minus = 0
        while self._is("-"):
            self._take()
            minus += 1
        found = self._union()
        # Two minuses make a number of it all the same.
        return found if not minus else Negative(Negative(found) if minus % 2 == 0 else found)

    def _union(self) -> Expression:
        found = self._path()
        while self._is("|"):
            token = self._operator()
            other = self._path()
            for side in (found, other):
                if not isinstance(side, Path) and not _is_union(side):
                    raise fault("'|' joins paths only", token.at)
            found = Binary("|", found, other)
        return found

    def _path(self) -> Expression:
        start = self._start()
        if start is not None:
            filters = self._predicates()
            if not filters and not self._is("/", "//"):
                return start
            return Path(False, self._further_steps(), start, filters)
        if self._is("/"):
            self._take()
            first = (self._step(),) if self._begins_step() else ()
            return Path(True, first + self._further_steps())
        if self._is("//"):
            return Path(True, self._further_steps())
        return Path(False, (self._step(), *self._further_steps()))

    def _start(self) -> Expression | None:
        """What is no path by itself: a constant, a call, or an expression in brackets."""
        token = self._now
        if token.kind == "number":
            return Constant(float(self._take().text))
        if token.kind == "text":
            return Constant(self._take().text[1:-1])
        if self._is("("):
            self._take()
            found = self._expression()
            self._need(")")
            return found
        if token.text == "$":
            raise fault("variables are not offered", token.at, "write the value itself")
        following = self._tokens[min(self._at + 1, len(self._tokens) - 1)].text
        if token.kind == "name" and following == "(" and token.text not in ("text", "node"):
            return self._call()
        return None

    def _call(self) -> Call:
        token = self._take()
        if token.text not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            raise fault(f"there is no function {token.text!r}", token.at, f"known: {known}")
        self._need("(")
        arguments: list[Expression] = []
        while not self._is(")"):
            if arguments:
                self._need(",")
            arguments.append(self._expression())
        self._need(")")
        least, most = FUNCTIONS[token.text]
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise fault(f"{token.text}() takes {wanted} arguments", token.at)
        if token.text in ("count", "sum") and not isinstance(arguments[0], Path | Binary):
            raise fault(f"{token.text}() takes a path", token.at)
        return Call(token.text, tuple(arguments))

    def _begins_step(self) -> bool:
        return self._now.kind == "name" or self._is("*", "@", ".", "..")

    def _further_steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        while self._is("/", "//"):
            if self._take().text == "//":
                steps.append(_ANYWHERE)
            steps.append(self._step())
        return tuple(steps)

    def _step(self) -> Step:
        token = self._take()
        if token.text in (".", "..") and token.kind == "symbol":
            return Step("self" if token.text == "." else "parent", "node()")
        axis: Axis = "child"
        if token.text == "@" and token.kind == "symbol":
            axis, token = "attribute", self._take()
        if self._is("::"):
            hint = "write the short form: a/b, //b, @b, . or .."
            raise fault("axes by name are not offered", token.at, hint)
        if token.kind != "name" and token.text != "*":
            raise fault("a name is missing", token.at, "such as /floorplan/room")
        return Step(axis, self._test(token), self._predicates())

    def _test(self, token: Token) -> str:
        if not self._is("("):
            return token.text
        self._take()
        self._need(")")
        if token.text not in ("text", "node"):
            raise fault(f"{token.text}() cannot stand here", token.at, "offered: text(), node()")
        return f"{token.text}()"

    def _predicates(self) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while self._is("["):
            self._take()
            found.append(self._expression())
            self._need("]")
        return tuple(found)


def _is_union(expression: Expression) -> bool:
    return isinstance(expression, Binary) and expression.operator == "|"
