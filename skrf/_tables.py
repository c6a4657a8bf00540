"""Results side by side: lists of dataclasses that print as tables and convert to data frames."""

from dataclasses import fields
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pandas import DataFrame

Row = TypeVar("Row")


class Table(list[Row], Generic[Row]):
    """A list of rows of the dataclass `row_type`, with a field ``name``, that prints as a table.

    Parameters
    ----------
    iterable : iterable of row_type, default=()
        The rows. Fields that are not part of their repr are not printed.
    """

    row_type = None

    def __repr__(self):
        names = [column.name for column in fields(self.row_type) if column.repr]
        cells = [[_text(getattr(row, name)) for name in names] for row in self]
        columns = zip(names, *cells, strict=True)
        padded = [[f"{cell:>{max(map(len, column))}}" for cell in column] for column in columns]
        padded[0] = [f"{cell.strip():{len(cell)}}" for cell in padded[0]]
        return "\n".join(map("  ".join, zip(*padded, strict=True)))

    def to_frame(self) -> "DataFrame":
        """Return a pandas DataFrame with the names as its index.

        Returns
        -------
        DataFrame
            All fields of every row; requires pandas.
        """
        from pandas import DataFrame

        names = [column.name for column in fields(self.row_type)]
        return DataFrame(map(vars, self), columns=names).set_index("name")


def _text(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)
