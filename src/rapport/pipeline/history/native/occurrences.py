"""The occurrences of a term that one event decides, wholly on Spark. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rapport.pipeline.history.native.deciding import FLIPPED, Deciding
from rapport.pipeline.history.native.enrich import attribute_columns, enriched, instance_table
from rapport.pipeline.history.native.grid import points_in_rectangles, points_near_points
from rapport.pipeline.history.native.interest import Interest, Wanted, simplified
from rapport.pipeline.history.native.operands import Operands
from rapport.pipeline.history.native.possible import satisfying
from rapport.pipeline.history.native.spark_filter import spark_filtered
from rapport.pipeline.history.native.values import Boxes
from rapport.policy import relations
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import satisfies
from rapport.policy.plan import Constant, LookedUp, Measure, QueryTerm, ReadingTerm, SideValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME, ID, WHOSE = "time", "id", "whose"
_MINE, _THEIRS = "mine_", "theirs_"


class Occurrences:
    """One term over readings; the event stands at `place`, an instance of the tables at the other
    side.
    """

    def __init__(self, term: QueryTerm | ReadingTerm, pull: PullData) -> None:
        self._term, self._pull = term, pull
        self._sides = (term.first, term.second)
        self._place = 0 if term.first.stream is not None else 1
        self._own, self._other = self._sides[self._place], self._sides[1 - self._place]
        self._mine = pull.instances(self._own.concept)
        self._theirs = pull.instances(self._other.concept)

    def of(self, rows: DataFrame) -> DataFrame:
        """`time` and `id` of the events, and a column `@alias` per alias with the identity."""
        from pyspark.sql import functions as sql

        names = dict.fromkeys((f"@{self._own.alias}", f"@{self._other.alias}"))
        if self._asks_what_no_table_gives():
            nobody = [sql.lit(None).cast("string").alias(name) for name in names]
            return rows.where("false").select(TIME, ID, *nobody)
        frame = self._with_mine(self._events(rows))
        whose = [sql.col(WHOSE)]
        if isinstance(self._term, QueryTerm):
            frame, theirs = self._with_theirs(frame), sql.col(f"{_THEIRS}key")
            if len(names) == 1:
                frame = frame.where(whose[0] == theirs)
            whose.append(theirs)
        frame = self._with_looked_up(frame)
        operands = Operands(self._columns(frame), self._looked_up(), dict(frame.dtypes))
        found = frame.where(operands.condition(self._term))
        aliases = (whose[place].alias(name) for place, name in enumerate(names))
        return found.select(TIME, ID, *aliases)

    def _events(self, rows: DataFrame) -> DataFrame:
        """The events that may show it, with their values as `own_<part>`."""
        stream = self._own.stream
        assert stream is not None
        values = Deciding(self._term, self._pull, {}).values()
        if isinstance(values, Boxes):
            values = None  # the join by squares looks at points anyway
        wanted = Wanted(stream, satisfying(self._own, self._pull, {}), values)
        parts = [name for name in rows.columns if name.rpartition(".")[0] == stream]
        own = [f"`{name}` AS own_{name.rpartition('.')[2]}" for name in parts]
        chosen = spark_filtered(rows, Interest(simplified([wanted])))
        return chosen.selectExpr(TIME, ID, f"key AS {WHOSE}", *own)

    def _with_mine(self, frame: DataFrame) -> DataFrame:
        """What the tables know of whose event it is, as far as the term asks."""
        asked = [one.attribute for one in self._values() if self._is_mine(one)]
        if not asked:
            return frame
        return enriched(frame, self._mine, asked, key=WHOSE, prefix=_MINE)

    def _with_theirs(self, frame: DataFrame) -> DataFrame:
        """Every instance the event may meet: by squares where places decide, else each that
        satisfies the constraints.
        """
        from pyspark.sql import functions as sql

        asked = [one.attribute for one in self._values() if one.side == 1 - self._place]
        rows = np.flatnonzero(satisfies(self._theirs, self._other.constraints))
        table = instance_table(self._theirs, asked, rows, prefix=_THEIRS)
        names = [
            f"{_THEIRS}{name}" for name in attribute_columns(self._theirs, self._other.attribute)
        ]
        if self._is_inside() and len(names) == 4:
            return points_in_rectangles(frame, "own_x", "own_y", table, corners=tuple(names))
        near = self._near()
        if near is not None:
            attribute, reach = near
            at = [f"{_THEIRS}{name}" for name in attribute_columns(self._theirs, attribute)]
            if len(at) == 2:
                return points_near_points(frame, "own_x", "own_y", table, reach, at=(at[0], at[1]))
        return frame.crossJoin(sql.broadcast(frame.sparkSession.createDataFrame(table)))

    def _with_looked_up(self, frame: DataFrame) -> DataFrame:
        """The numbers that looked-up functions give, null where they give none."""
        from pyspark.sql import functions as sql

        columns = self._columns(frame)
        for function, name in self._looked_up().items():
            table = _pairs_table(self._pull, function, name)
            small = sql.broadcast(frame.sparkSession.createDataFrame(table))
            asked = [sql.col(columns[value][0]) for value in function.of]
            keys = [sql.col(key) for key in table.column_names[:-1]]
            matched = [ours == key for ours, key in zip(asked, keys, strict=True)]
            frame = frame.join(small, matched, "left").drop(*table.column_names[:-1])
        return frame

    def _looked_up(self) -> dict[LookedUp, str]:
        compared = self._term.compared
        operands = () if compared is None else (compared.left, compared.right)
        found = dict.fromkeys(one for one in operands if isinstance(one, LookedUp))
        return {function: f"looked_up_{place}" for place, function in enumerate(found)}

    def _columns(self, frame: DataFrame) -> dict[SideValue, list[str]]:
        """The columns of every value the term reads."""
        own = [name for name in frame.columns if name.startswith("own_")]
        found = {}
        for value in self._values():
            if not self._is_of_event(value):
                prefix, known = _THEIRS, self._theirs
            elif value.attribute == self._own.attribute:
                found[value] = own
                continue
            elif value.attribute == ID:
                found[value] = [WHOSE]
                continue
            else:
                prefix, known = _MINE, self._mine
            found[value] = [f"{prefix}{name}" for name in attribute_columns(known, value.attribute)]
        return found

    def _values(self) -> Iterator[SideValue]:
        """Every value that the term reads."""
        if self._term.compared is None:
            yield SideValue(0, self._term.first.attribute)
            yield SideValue(1, self._term.second.attribute)
            return
        for operand in (self._term.compared.left, self._term.compared.right):
            if isinstance(operand, SideValue):
                yield operand
            elif isinstance(operand, Measure | LookedUp):
                yield from operand.of

    def _asks_what_no_table_gives(self) -> bool:
        """Whether a value that it reads is missing for everybody, so that it never holds."""
        for value in self._values():
            known = self._mine if self._is_of_event(value) else self._theirs
            given = value.attribute == ID or self._is_own(value) or value.attribute in known.columns
            if not given:
                return True
        return False

    def _is_of_event(self, value: SideValue) -> bool:
        return isinstance(self._term, ReadingTerm) or value.side == self._place

    def _is_mine(self, value: SideValue) -> bool:
        """Whether it is what tables know of whose event it is."""
        own = (self._own.attribute, ID)
        return self._is_of_event(value) and value.attribute not in own

    def _is_inside(self) -> bool:
        is_relation = self._term.compared is None
        return (
            is_relation
            and self._place == 0
            and relations.get(self._term.function) is relations.INSIDE
        )

    def _near(self) -> tuple[str, float] | None:
        """The attribute of the other side and how near to it the event's point must be, where that
        is so: `within`, or `distance(A, S) < c`.
        """
        compared = self._term.compared
        if compared is None:
            if relations.get(self._term.function) is relations.WITHIN:
                return self._other.attribute, float(self._term.parameter or 0.0)
            return None
        left, operator, right = compared.left, compared.operator, compared.right
        for near, how, bound in ((left, operator, right), (right, FLIPPED[operator], left)):
            if isinstance(near, Measure) and isinstance(bound, Constant) and how in ("<", "<="):
                others = [value for value in near.of if not self._is_of_event(value)]
                own = [value for value in near.of if self._is_own(value)]
                if len(own) == len(others) == 1:
                    return others[0].attribute, float(bound.value)
        return None

    def _is_own(self, value: SideValue) -> bool:
        return self._is_of_event(value) and value.attribute == self._own.attribute


def _pairs_table(pull: PullData, function: LookedUp, name: str) -> pa.Table:
    pairs = pull.pairs(function.function)
    columns = {
        f"{name}_{place}": pa.array([key[place] for key in pairs], pa.string())
        for place in range(len(function.of))
    }
    numbers = np.fromiter(pairs.values(), np.float64, len(pairs))
    return pa.table(columns | {name: pa.array(numbers, from_pandas=True)})
