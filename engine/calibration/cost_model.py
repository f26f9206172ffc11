"""Fits the engine time of tokens to measured windows of load, and tests whether it is a straight
line in the token counts.

The time of a window, in seconds in which the engine worked for it:

    time = round · requests / concurrency
         + input · uncached input tokens + cached_input · cached tokens
         + output · output tokens + step · output tokens / concurrency

`step` is the part of a decode step that does not depend on the batch: the step reads the weights
once for all sequences, so a token costs less at a higher concurrency. `round` is the intercept: the
time in which a request is in the network or otherwise waits. It is no work of the engine.

Least squares runs on shares: each window's row is divided by its time, so that a second's error
counts more in a short window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from engine.calibration.least_squares import (
    CollinearDesignError,
    LeastSquares,
    Row,
    solve,
)
from engine.errors import EngineError

T = TypeVar("T")
CONFIDENCE = 0.95
TokenKind = Literal["input", "cached_input", "output"]
KINDS: tuple[TokenKind, ...] = ("input", "cached_input", "output")
COLUMNS = ("round", "input", "cached_input", "output", "step")
BEND_P_VALUE = 0.01
BEND_SHARE = 0.10
"""A bend counts if its p-value is below 0.01 / curves and it moves a window by more than this
share.

On a quiet machine noise is so small that a bend of no consequence has a tiny p-value.
"""
CURVES = ("prompt", "answer")
CURVE_SOURCE = (
    "added squares, after J. B. Ramsey, Tests for Specification Errors in Classical Linear "
    "Least-squares Regression Analysis, J. R. Stat. Soc. B 31 (1969)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWindow:
    """The load of one window, in tokens of all its requests, and the engine time that it took."""

    requests: int
    concurrency: float
    """Requests at work in the engine, on average."""
    input_tokens: int
    """Prompt tokens that were not read from the prefix cache."""
    cached_input_tokens: int
    output_tokens: int
    prompt_pairs: float
    """Pairs of tokens that attention compared while it read the prompts: the sum of (prompt² -
    cached²) / 2.
    """
    answer_pairs: float
    """The same while it wrote the answers: the sum of output · (prompt + output / 2)."""
    engine_s: float

    @property
    def tokens(self) -> int:
        """Return all tokens of the window."""
        return self.input_tokens + self.cached_input_tokens + self.output_tokens

    def row(self) -> Row:
        """Return the factors of the model's coefficients, in the order of `COLUMNS`."""
        return (
            self.requests / self.concurrency,
            self.input_tokens,
            self.cached_input_tokens,
            self.output_tokens,
            self.output_tokens / self.concurrency,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTime:
    """The engine seconds of one token with their 95 % interval."""

    seconds: float
    low_s: float
    high_s: float

    @property
    def tok_per_s(self) -> float:
        """Return the tokens per second of an engine that does nothing else."""
        return 1 / self.seconds

    @property
    def interval_tok_per_s(self) -> tuple[float, float | None]:
        """Return the interval of the tokens per second; without an upper end if the time may be
        0.
        """
        return 1 / self.high_s, (1 / self.low_s if self.low_s > 0 else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """The test of one curve: attention reads all earlier tokens, so its time grows with the square
    of the length (A. Vaswani et al., Attention Is All You Need, 2017, table 1).
    """

    curve: str
    p_value: float
    share: float
    """The largest share by which the curve moves the time of a window."""

    @property
    def counts(self) -> bool:
        """Return True if the curve is neither noise nor too small to matter."""
        return self.p_value < BEND_P_VALUE / len(CURVES) and self.share > BEND_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The fitted engine time of tokens. Without cached tokens in the load there is none of them."""

    solution: LeastSquares
    has_cached: bool
    r_squared: float

    def predict_s(self, window: LoadWindow) -> float:
        """Return the engine seconds of a load, from its tokens and concurrency alone."""
        return self.solution.value(_kept(window.row(), self.has_cached))

    def coefficient_s(self, name: str) -> float | None:
        """Return a coefficient by its column's name, in seconds."""
        if name not in (names := _kept(COLUMNS, self.has_cached)):
            return None
        return self.solution.coefficients[names.index(name)]

    def token_time(self, kind: TokenKind, concurrency: float) -> TokenTime | None:
        """Return the engine time of a token at a concurrency; None for cached input that was not
        measured.

        A time that is not above 0 is replaced by the upper end of its interval: the token costs at
        most that.
        """
        if kind == "cached_input" and not self.has_cached:
            return None
        factors = [float(name == kind) for name in COLUMNS]
        if kind == "output":
            factors[COLUMNS.index("step")] = 1 / concurrency
        row = _kept(factors, self.has_cached)
        seconds, half = self.solution.value(row), self.solution.half_width(row, CONFIDENCE)
        low_s, high_s = seconds - half, seconds + half
        if high_s <= 0 or (seconds <= 0 and kind != "cached_input"):
            raise EngineError(
                f"The time of an {kind.replace('_', ' ')} token came out as {seconds:.3g} s: the "
                "measurement is too noisy. Stop other work on the engine, or give more --seconds."
            )
        return TokenTime(seconds=seconds if seconds > 0 else high_s, low_s=low_s, high_s=high_s)


def fit(windows: Sequence[LoadWindow]) -> CostModel:
    """Return the model of these windows.

    Raises: EngineError: the windows cannot tell the kinds of tokens apart, or are too few.
    """
    has_cached = any(window.cached_input_tokens for window in windows)
    rows = [_kept(window.row(), has_cached) for window in windows]
    solution = _solved(windows, rows, _kept(COLUMNS, has_cached))
    return CostModel(
        solution=solution, has_cached=has_cached, r_squared=_r_squared(windows, rows, solution)
    )


def bends(windows: Sequence[LoadWindow], model: CostModel) -> list[Bend]:
    """Return the test of each curve: the p-value of its coefficient beside the model's own."""
    rows = [_kept(window.row(), model.has_cached) for window in windows]
    names = _kept(COLUMNS, model.has_cached)
    found = []
    for curve in CURVES:
        longer = [
            (*row, window.prompt_pairs if curve == "prompt" else window.answer_pairs)
            for row, window in zip(rows, windows, strict=True)
        ]
        curved = _solved(windows, longer, (*names, f"{curve} squared"))
        share = max(
            abs(curved.value(long) - model.solution.value(row)) / window.engine_s
            for long, row, window in zip(longer, rows, windows, strict=True)
        )
        found.append(Bend(curve=curve, p_value=curved.p_value(len(names)), share=share))
    return found


def prediction_error(measured_s: Sequence[float], predicted_s: Sequence[float]) -> float:
    """Return the sum of absolute errors as a share of the measured time; errors of opposite sign
    do not cancel.
    """
    wrong_s = sum(abs(one - other) for one, other in zip(measured_s, predicted_s, strict=True))
    return wrong_s / sum(measured_s)


def flat_time_s(windows: Sequence[LoadWindow]) -> float:
    """Return the engine time of a token if all kinds cost the same: the price that the weights are
    compared with.
    """
    return sum(one.engine_s for one in windows) / sum(one.tokens for one in windows)


def _kept(row: Sequence[T], has_cached: bool) -> tuple[T, ...]:
    """Return a row without the column of cached input if there is none."""
    if has_cached:
        return tuple(row)
    place = COLUMNS.index("cached_input")
    return (*row[:place], *row[place + 1 :])


def _solved(
    windows: Sequence[LoadWindow], rows: Sequence[Row], names: Sequence[str]
) -> LeastSquares:
    """Return the solution on shares. Raises `EngineError` for windows that cannot give one."""
    shares = [
        [factor / window.engine_s for factor in row]
        for row, window in zip(rows, windows, strict=True)
    ]
    try:
        return solve(shares, [1.0] * len(windows))
    except CollinearDesignError as error:
        raise EngineError(
            f"The load cannot tell the time of {names[error.column]!r} from the others: in all "
            "windows it grew with them. Does the engine end answers early, or run fewer requests "
            "at once than asked (max_num_seqs)? Give a smaller --concurrency."
        ) from error
    except ValueError as error:
        raise EngineError(f"Too few windows were measured: {error}.") from error


def _r_squared(windows: Sequence[LoadWindow], rows: Sequence[Row], solution: LeastSquares) -> float:
    """Return the share of the variance of the seconds per request that the model explains."""
    measured = [window.engine_s / window.requests for window in windows]
    left = [
        one - solution.value(row) / window.requests
        for one, row, window in zip(measured, rows, windows, strict=True)
    ]
    mean = sum(measured) / len(measured)
    return 1 - sum(one**2 for one in left) / sum((one - mean) ** 2 for one in measured)
