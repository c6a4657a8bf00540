"""The best law of counts beside Poisson and geometric ones, on digits.

    python benchmarks/reproduce/discrete_law.py            about a minute
    python benchmarks/reproduce/discrete_law.py --quick    fewer rows, some seconds

Not in the papers: `DiscreteRF` is ours. Closed forms at sigma = 1 for one projection: the log of
the second moment, averaged over pairs (what the law is the minimiser of, column by column), and the
mean of the log second moment over the squared kernel (what the rates of the papers are chosen by).
Laws are fitted to the first half of the rows, which are queries and keys or, where that is said,
each one of them; those of the second half are new.
"""

import numpy as np
from _common import markdown, parser, publish
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_digits

from skrf import DiscreteRF, GeometricRF, PoissonRF

FEATURE_MAPS = {
    "best law": DiscreteRF(1),
    "Poisson": PoissonRF(1),
    "geometric": GeometricRF(1),
}


def data_sets(quick):
    """Return name: queries and keys to fit to, and new ones."""
    digits, rng = load_digits().data / 16, np.random.default_rng(0)
    sizes = (100,) if quick else (100, 400, len(digits))
    sets = {f"digits, {n} rows": rng.permutation(digits)[:n] for n in sizes}
    found = {name: [(half, half) for half in np.array_split(X, 2)] for name, X in sets.items()}
    quarters = np.split(np.random.default_rng(1).permutation(digits)[:320], 4)
    return {"digits, 80 queries and 80 other keys": [quarters[:2], quarters[2:]], **found}


def objectives(fitted, X, Y):
    """Return the log of the mean second moment, and the mean log second moment over K^2."""
    log_kernel = fitted.exact_kernel(X, Y, log=True)
    logs = np.logaddexp(fitted.kernel_variance(X, Y, log=True), 2 * log_kernel)
    return logsumexp(logs) - np.log(logs.size), np.mean(logs - 2 * log_kernel)


def main():
    """Run what the command line asks for."""
    arguments = parser(__doc__).parse_args()
    sets, parts = data_sets(arguments.quick), []
    head = ("law", "log mean second moment", "mean log", "the same, new rows", "mean log, new rows")
    for name, (known, new) in sets.items():
        table = [head]
        for law, feature_map in FEATURE_MAPS.items():
            keys = None if known[1] is known[0] else known[1]
            own = clone(feature_map).set_params(sigma=1.0, random_state=0)
            fitted = own.fit(known[0], keys=keys)
            values = (*objectives(fitted, *known), *objectives(fitted, *new))
            table.append((law, *(f"{value:.2f}" for value in values)))
        parts.append(f"## {name}\n\n{markdown(table)}\n")
    title = "# The best law of counts, sigma = 1, one projection\n\n"
    publish(arguments, "discrete_law", title + "\n".join(parts))


if __name__ == "__main__":
    main()
