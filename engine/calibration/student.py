"""Computes Student's t distribution, without a library: the gateway's environment has none.

The incomplete beta function follows the continued fraction 8.17.22 of the NIST Digital Library of
Mathematical Functions (dlmf.nist.gov), evaluated by Lentz's method.
"""

import math
from functools import lru_cache

MOST_TERMS = 500
PRECISION = 1e-14
TINY = 1e-300
BISECTIONS = 100
LARGEST_T = 1e6


def two_sided_p(t: float, dof: int) -> float:
    """Return the probability that |T| is at least |t|, for `dof` degrees of freedom."""
    return incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))


@lru_cache
def two_sided_quantile(confidence: float, dof: int) -> float:
    """Return the t for which |T| is below t with this probability."""
    low, high = 0.0, LARGEST_T
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if two_sided_p(middle, dof) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), for x from 0 to 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # beyond, the fraction converges slowly
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d1 / (1 + d2 / (1 + …)) of DLMF 8.17.22."""
    value = numerator = 1.0
    denominator = 0.0
    for n in range(1, MOST_TERMS):
        half, odd = divmod(n, 2)
        if odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / _away_from_0(1 + term * denominator)
        numerator = _away_from_0(1 + term / numerator)
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < PRECISION:
            break
    return value


def _away_from_0(value: float) -> float:
    """Return the value, or a tiny one instead of 0, by which it can be divided."""
    return value if abs(value) > TINY else TINY
