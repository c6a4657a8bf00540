"""Sunspot cycles: a hidden Markov model with Gaussian emissions from scikit-learn.

    pip install statsmodels
    python examples/sunspots.py

Each year from 1700 to 2008 is described by the square root of its number of sunspots and the change
from the year before. A Gaussian mixture models how often such pairs occur, but not their order. Its
components become the states of a chain: `fit(log_likelihood=...)` learns the transitions from a
table of their log densities, and `predict_proba(log_likelihood=...)` gives the responsibilities
with which the components are re-estimated. The years from 1900 on are held out.
"""

import numpy as np
from sklearn.mixture import GaussianMixture
from statsmodels.datasets import sunspots

from skrf.graphical import KernelHMM

N_STATES, WIDTH, N_ROUNDS, SHRINK = 8, 4, 10, 0.05


def log_densities(mixture, X):
    """Return the log densities of all components, (n, N_STATES), without their weights."""
    # scikit-learn has them with the weights: log p(k | x) + log p(x) - log p(k).
    with np.errstate(divide="ignore"):
        joint = np.log(mixture.predict_proba(X)) + mixture.score_samples(X)[:, None]
    return joint - np.log(mixture.weights_)


def estimated(X, shares, mixture):
    """Return a mixture of the means and covariances of rows with these shares."""
    weights = shares.sum(axis=0)
    means = shares.T @ X / weights[:, None]
    covariances = []
    for k, mean in enumerate(means):
        apart = X - mean
        covariances.append((shares[:, k, None] * apart).T @ apart / weights[k])
        covariances[k] += SHRINK * np.eye(X.shape[1])
    other = GaussianMixture(N_STATES)
    other.weights_, other.means_ = weights / weights.sum(), means
    other.covariances_ = np.array(covariances)
    other.precisions_cholesky_ = np.linalg.cholesky(np.linalg.inv(other.covariances_))
    return other


def main():
    roots = np.sqrt(sunspots.load_pandas().data["SUNACTIVITY"].to_numpy())
    X = np.column_stack([roots[1:], np.diff(roots)])
    train, held = X[:199], X[199:]
    mixture = GaussianMixture(N_STATES, reg_covar=SHRINK, random_state=0).fit(train)
    print(f"mixture, no order:       {mixture.score(train):7.3f} {mixture.score(held):7.3f}")

    states, targets = 0.5 * np.random.default_rng(0).normal(size=(2, N_STATES, WIDTH))
    chain = KernelHMM(states, targets=targets, warm_start=True, tol=1e-4)
    for number in range(1, N_ROUNDS + 1):
        table = log_densities(mixture, train)
        chain.fit(log_likelihood=table)
        if number in (1, N_ROUNDS):
            scores = [
                chain.score(log_likelihood=log_densities(mixture, part)) / len(part)
                for part in (train, held)
            ]
            print(f"chain of {N_STATES}, round {number:2}:    {scores[0]:7.3f} {scores[1]:7.3f}")
        mixture = estimated(train, chain.predict_proba(log_likelihood=table), mixture)
    order = np.argsort(mixture.means_[:, 1])
    print("\nstate   sunspots   change of the root   most probable other")
    names = {state: name for name, state in enumerate(order)}
    for state in order:
        size, change = mixture.means_[state]
        shares = chain.transmat_[state].copy()
        shares[state] = 0.0
        print(f"{names[state]:5} {size**2:10.0f} {change:20.2f} {names[np.argmax(shares)]:20}")


if __name__ == "__main__":
    main()
