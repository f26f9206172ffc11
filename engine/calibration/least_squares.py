"""Solves small least-squares problems by hand, with the covariance of the coefficients; it knows
nothing of engines. A problem has a few columns and some dozens of rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.calibration.student import two_sided_p, two_sided_quantile

LEAST_INDEPENDENT = 1e-4
"""The least part of a column's length that the columns before it may leave over. At 1e-4 the
variance of its coefficient is already inflated by 1e8.
"""
Row = Sequence[float]


class CollinearDesignError(Exception):
    """A column that is 0, or a combination of the columns before it. `column` is its index."""

    def __init__(self, column: int) -> None:
        """Keep the index of the column."""
        super().__init__(f"column {column} depends on the columns before it")
        self.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares:
    """The solution of one problem, with as many coefficients as columns."""

    coefficients: Sequence[float]
    covariance: Sequence[Sequence[float]]
    dof: int
    """Rows minus columns."""

    def value(self, row: Row) -> float:
        """Return the fitted value of a row."""
        return sum(one * other for one, other in zip(self.coefficients, row, strict=True))

    def half_width(self, row: Row, confidence: float) -> float:
        """Return half of the interval of a row's fitted value; a row of 0s and a 1 is a
        coefficient's.
        """
        variance = sum(
            row[i] * self.covariance[i][j] * row[j]
            for i in range(len(row))
            for j in range(len(row))
        )
        return two_sided_quantile(confidence, self.dof) * math.sqrt(max(0.0, variance))

    def p_value(self, column: int) -> float:
        """Return the probability of a coefficient at least as far from 0 if the true one is 0."""
        deviation = math.sqrt(self.covariance[column][column])
        if deviation == 0:
            return 0.0 if self.coefficients[column] else 1.0
        return two_sided_p(self.coefficients[column] / deviation, self.dof)


def solve(rows: Sequence[Row], values: Sequence[float]) -> LeastSquares:
    """Return the coefficients that minimize the sum of squared residuals.

    The columns are made orthogonal one after the other (modified Gram-Schmidt, Å. Björck,
    "Numerical Methods for Least Squares Problems", 1996, §2.4).

    Raises: CollinearDesignError: a column depends on others. ValueError: too few rows.
    """
    width, dof = len(rows[0]), len(rows) - len(rows[0])
    if dof < 1:
        raise ValueError(f"{len(rows)} rows are too few for {width} columns")
    upper = [[0.0] * width for _ in range(width)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    residuals, projected = list(values), [0.0] * width
    for i, column in enumerate(columns):
        length, left = math.hypot(*(row[i] for row in rows)), math.hypot(*column)
        if not left > LEAST_INDEPENDENT * length:
            raise CollinearDesignError(i)
        unit, upper[i][i] = [one / left for one in column], left
        for j in range(i + 1, width):
            upper[i][j] = _dot(unit, columns[j])
            columns[j] = _minus(columns[j], upper[i][j], unit)
        projected[i] = _dot(unit, residuals)
        residuals = _minus(residuals, projected[i], unit)
    inverse = _inverse(upper)
    variance = _dot(residuals, residuals) / dof
    return LeastSquares(
        coefficients=[_dot(row, projected) for row in inverse],
        covariance=[[variance * _dot(one, other) for other in inverse] for one in inverse],
        dof=dof,
    )


def _inverse(upper: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of an upper triangular matrix."""
    width = len(upper)
    inverse = [[0.0] * width for _ in range(width)]
    for j in range(width):
        for i in range(j, -1, -1):
            known = sum(upper[i][k] * inverse[k][j] for k in range(i + 1, j + 1))
            inverse[i][j] = (float(i == j) - known) / upper[i][i]
    return inverse


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the scalar product of two vectors."""
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _minus(one: Sequence[float], factor: float, other: Sequence[float]) -> list[float]:
    """Return a vector minus a multiple of another one."""
    return [a - factor * b for a, b in zip(one, other, strict=True)]
