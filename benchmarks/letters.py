"""Learn the letters of a text with KernelHMM and with hmmlearn: held-out likelihood and time.

    python benchmarks/letters.py [--quick | --choose]

Python's help topics as examples/character_hmm.py reads them: 20,000 letters to learn from, in
sequences of 250, and the last 5,000 of the text held out, as one sequence; 64 states, one thread
for both. hmmlearn's CategoricalHMM (scaling, emissionprob_prior=1.01) is fitted from three seeds by
10 iterations, its default, and by 100; KernelHMM from random embeddings of width 32 by 60 and by
200 iterations from three starts, of which the best on the training text is kept, and KernelHMM(64)
with its defaults. Of hmmlearn's three, the one that is best on the held-out text counts. Seconds
are CPU time of all starts. `--quick` leaves the long fits out, which take minutes.
Width and scale are the best of nine pairs on the 5,000 letters that follow those to learn from;
`--choose` prints that table.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from hmmlearn.hmm import CategoricalHMM
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skrf.graphical import KernelHMM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from character_hmm import read_text

N_STATES, WIDTH, SCALE = 64, 32, 0.3
WIDTHS, SCALES = (8, 16, 32), (0.3, 0.5, 1.0)
LENGTHS = np.full(80, 250)
# Iterations of hmmlearn; iterations and starts of ours.
CASES = ((10, 60, 3), (100, 200, 3))


def fit_hmmlearn(letters, n_letters, n_iter):
    """Return three models."""
    return [
        CategoricalHMM(
            N_STATES,
            n_features=n_letters,
            implementation="scaling",
            emissionprob_prior=1.01,
            n_iter=n_iter,
            random_state=seed,
        ).fit(letters[:, None], LENGTHS)
        for seed in range(3)
    ]


def fit_ours(letters, n_letters, n_iter, n_init, width=WIDTH, scale=SCALE):
    """Return the best of some starts, alone in a list; of the defaults if n_iter is None."""
    model = KernelHMM(N_STATES, n_letters, random_state=0)
    if n_iter is not None:
        given = {"scale": scale, "max_iter": n_iter, "n_init": n_init, "random_state": 0}
        model = KernelHMM.from_random(N_STATES, n_letters, width, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return [model.fit(letters, LENGTHS)]


def choose(train, other, n_letters):
    """Print what pairs of width and scale reach on letters that nothing else is measured on."""
    print("width  scale  other text, nats per letter")
    for width in WIDTHS:
        for scale in SCALES:
            (model,) = fit_ours(train, n_letters, *CASES[0][1:], width, scale)
            print(f"{width:5}{scale:7}{model.score(other[:, None]) / len(other):9.3f}", flush=True)


def main():
    """Fit, score and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the short fits")
    parser.add_argument("--choose", action="store_true", help="compare widths and scales")
    options = parser.parse_args()
    alphabet, text, held_out = read_text()
    train, other = np.split(text[: LENGTHS.sum() + 5000], [LENGTHS.sum()])
    held_out = held_out[-5000:]
    if options.choose:
        return choose(train, other, len(alphabet))
    print(f"{'model':<37}{'train':>9}{'held out':>10}{'seconds':>9}   nats per letter")
    for n_iter, own_iter, n_init in CASES[: 1 if options.quick else None]:
        found = []
        for name, fit, *arguments in (
            (f"hmmlearn, {n_iter} iterations, 3 starts", fit_hmmlearn, n_iter),
            (f"KernelHMM, {own_iter} iterations, {n_init} starts", fit_ours, own_iter, n_init),
            *([("KernelHMM(64)", fit_ours, None, 0)] if n_iter > 10 else []),
        ):
            start = time.process_time()
            models = fit(train, len(alphabet), *arguments)
            seconds = time.process_time() - start
            best = max(models, key=lambda model: model.score(held_out[:, None]))
            on_train = best.score(train[:, None], LENGTHS) / len(train)
            score = best.score(held_out[:, None]) / len(held_out)
            print(f"{name:<37}{on_train:9.3f}{score:10.3f}{seconds:9.1f}", flush=True)
            found.append((score, seconds))
        (theirs, their_time), (ours, own_time) = found[:2]
        kept = "KEPT" if ours >= theirs and own_time <= 2 * their_time else "MISSED"
        print(
            f"{kept}: held-out likelihood at least hmmlearn's ({ours - theirs:+.3f}) in at most "
            f"twice its time ({own_time / their_time:.2f})\n"
        )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
