"""Displays in scikit-learn's manner: errors of kernels, attention matrices, comparisons.

They need matplotlib, which only `plot` imports.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone

from ._typing import Array, RandomState
from ._validation import check_integer, draw_seed
from .attention import ApproxKernelAttention, exact_attention
from .features import BaseRandomFeatures
from .theory import ComparisonTable, compare, kernel_variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

__all__ = [
    "AttentionMatrixDisplay",
    "ComparisonDisplay",
    "KernelErrorDisplay",
    "StateSequenceDisplay",
]

_MAX_POINTS = 2000  # of a scatter plot


def _axes(display, ax, n=1, stacked=False):
    """Return axes to draw on: the given ones, or new ones side by side or below each other."""
    import matplotlib.pyplot as plt

    if ax is None and stacked:
        _, ax = plt.subplots(n, figsize=(9.0, 2.2 * n), sharex=True, layout="constrained")
    elif ax is None:
        _, ax = plt.subplots(1, n, figsize=(4.8 * n, 4.2), layout="constrained")
    axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
    if len(axes) != n:
        raise ValueError(f"ax must be {n} axes, got {len(axes)}.")
    display.ax_ = axes[0] if n == 1 else axes
    display.figure_ = axes[0].figure
    return axes


@dataclass(eq=False, repr=False)
class KernelErrorDisplay:
    """Estimates of a kernel against the kernel, and how the error falls with more components.

    Use `from_estimator` to make one.

    Parameters
    ----------
    exact, estimate : ndarray of shape (n_x, n_y)
        The kernel and its estimate.
    n_components : ndarray of shape (n_sizes,)
        Numbers of components.
    measured : ndarray of shape (n_sizes, n_draws)
        Relative errors of the kernel matrix (Frobenius norm) at these, one per draw.
    predicted : ndarray of shape (n_sizes,)
        What the closed-form variance gives for them; NaN where none is known.
    name : str, default=None
        Of the feature map.

    Attributes
    ----------
    ax_ : ndarray of matplotlib Axes
        The two axes.
    figure_ : matplotlib Figure
        Their figure.

    See Also
    --------
    skrf.theory.compare : The same errors for several feature maps.
    skrf.theory.n_components_for : The number of components that an error takes.

    References
    ----------
    The variances are those of `skrf.theory.kernel_variance`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.plotting import KernelErrorDisplay
    >>> X = np.random.default_rng(0).normal(size=(60, 3)) / 2
    >>> features = OptimalPositiveRF(64, random_state=0).fit(X)
    >>> display = KernelErrorDisplay.from_estimator(features, X)
    >>> display.measured.shape, bool(display.predicted[0] > display.predicted[-1])
    ((4, 5), True)
    """

    exact: np.ndarray
    estimate: np.ndarray
    n_components: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    name: str | None = field(default=None, kw_only=True)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseRandomFeatures,
        X: Array,
        Y: Array | None = None,
        *,
        n_components: Array | None = None,
        n_draws: int = 5,
        random_state: RandomState = 0,
        name: str | None = None,
        ax: "Sequence[Axes] | None" = None,
    ) -> Self:
        """Measure the errors of a feature map, and plot them.

        Parameters
        ----------
        estimator : feature map
            Fitted; copies of it are fitted to X for other numbers of components and other draws.
        X : array-like of shape (n_x, n_features)
            Queries.
        Y : array-like of shape (n_y, n_features), default=None
            Keys; None takes X.
        n_components : array-like of int, default=None
            Numbers of components; None takes the estimator's, half of it, twice and four times as
            many.
        n_draws : int, default=5
            Draws for each of them.
        random_state : int, RandomState instance or None, default=0
            Source of these draws.
        name : str, default=None
            Name of the feature map; None takes that of its class.
        ax : sequence of 2 matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        KernelErrorDisplay
            The display, drawn.
        """
        exact, estimate = estimator.exact_kernel(X, Y), estimator.approximate_kernel(X, Y)
        if n_components is None:
            n_components = estimator.n_components * np.array([0.5, 1, 2, 4])
        sizes = np.unique(np.maximum(np.asarray(n_components), 1).astype(int))
        check_integer("n_draws", n_draws)
        first = draw_seed(random_state)
        scale = np.linalg.norm(exact)
        measured, predicted = np.empty((len(sizes), n_draws)), np.full(len(sizes), np.nan)
        keys = {} if Y is None else {"keys": Y}
        for i, size in enumerate(sizes):
            for j in range(n_draws):
                seed = (first + j) % 2**32
                features = clone(estimator).set_params(n_components=int(size), random_state=seed)
                features.fit(X, **keys)
                measured[i, j] = np.linalg.norm(features.approximate_kernel(X, Y) - exact) / scale
            try:
                predicted[i] = np.sqrt(kernel_variance(features, X, Y).sum()) / scale
            except NotImplementedError:
                pass  # no closed form: NaN, and no line
        name = type(estimator).__name__ if name is None else name
        return cls(exact, estimate, sizes, measured, predicted, name=name).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw estimates against the kernel, and errors against the numbers of components.

        Parameters
        ----------
        ax : sequence of 2 matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        KernelErrorDisplay
            The display.
        """
        left, right = _axes(self, ax, 2)
        exact, estimate = np.ravel(self.exact), np.ravel(self.estimate)
        step = -(-len(exact) // _MAX_POINTS)
        left.plot(exact[::step], estimate[::step], ".", alpha=0.4, label=self.name)
        ends = [exact.min(), exact.max()]
        left.plot(ends, ends, color="black", linewidth=1, label="exact")
        left.set(xlabel="kernel", ylabel="estimate")
        left.legend()
        middle = np.median(self.measured, axis=1)
        spread = np.abs(np.quantile(self.measured, [0, 1], axis=1) - middle)
        right.errorbar(self.n_components, middle, spread, fmt="o", capsize=3, label="measured")
        if np.isfinite(self.predicted).any():
            right.plot(self.n_components, self.predicted, "--", label="predicted")
        right.set(xscale="log", yscale="log", xlabel="n_components", ylabel="relative error")
        right.set_xticks(self.n_components, list(map(str, self.n_components)))
        right.set_xticks([], minor=True)
        right.legend()
        return self


@dataclass(eq=False, repr=False)
class AttentionMatrixDisplay:
    """The attention matrix of an operator beside the exact one.

    Use `from_estimator` to make one.

    Parameters
    ----------
    exact, approximate : ndarray of shape (L, S)
        Attention weights.

    Attributes
    ----------
    ax_ : ndarray of matplotlib Axes
        The two axes.
    figure_ : matplotlib Figure
        Their figure.

    See Also
    --------
    skrf.attention.ApproxKernelAttention.attention_matrix : The matrix that is drawn.
    skrf.attention.ApproxKernelAttention.diagnose : Figures in place of a picture, for long inputs.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 3.8.6.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import ApproxKernelAttention
    >>> from skrf.plotting import AttentionMatrixDisplay
    >>> q, k = np.random.default_rng(0).normal(size=(2, 24, 8))
    >>> attention = ApproxKernelAttention(random_state=0)
    >>> display = AttentionMatrixDisplay.from_estimator(attention, q, k)
    >>> display.exact.shape, np.allclose(display.exact.sum(axis=1), 1)
    ((24, 24), True)
    """

    exact: np.ndarray
    approximate: np.ndarray

    @classmethod
    def from_estimator(
        cls,
        attention: ApproxKernelAttention,
        q: Array,
        k: Array,
        *,
        ax: "Sequence[Axes] | None" = None,
    ) -> Self:
        """Make both matrices, and plot them; quadratic, for small inputs.

        Parameters
        ----------
        attention : ApproxKernelAttention
            The operator.
        q : array-like of shape (L, d)
            Queries of one head.
        k : array-like of shape (S, d)
            Its keys.
        ax : sequence of 2 matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        AttentionMatrixDisplay
            The display, drawn.
        """
        q, k = np.asarray(q), np.asarray(k)
        if q.ndim != 2 or k.ndim != 2:
            raise ValueError(f"q and k must be those of one head, got {q.shape} and {k.shape}.")
        options = {"causal": attention.causal, "mask": attention.mask, "scale": attention.scale}
        exact = exact_attention(q, k, np.eye(len(k), dtype=k.dtype), **options)
        return cls(exact, attention.attention_matrix(q, k)).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None, *, cmap: "str | Colormap" = "magma") -> Self:
        """Draw both matrices on one scale of colours.

        Parameters
        ----------
        ax : sequence of 2 matplotlib Axes, default=None
            Where to draw; None makes a figure.
        cmap : str or Colormap, default="magma"
            Colours.

        Returns
        -------
        AttentionMatrixDisplay
            The display.
        """
        axes = _axes(self, ax, 2)
        top = self.exact.max()
        for axis, matrix, title in zip(
            axes, (self.exact, self.approximate), ("exact", "approximate"), strict=True
        ):
            image = axis.imshow(matrix, vmin=0, vmax=top, cmap=cmap)
            axis.set(title=title, xlabel="key", ylabel="query")
        self.figure_.colorbar(image, ax=list(axes), label="attention weight", shrink=0.8)
        return self


@dataclass(eq=False, repr=False)
class ComparisonDisplay:
    """Errors of several feature maps, measured beside predicted.

    Use `from_table` or `from_data` to make one.

    Parameters
    ----------
    table : ComparisonTable
        What `skrf.theory.compare` returns.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        Their figure.

    See Also
    --------
    skrf.theory.compare : The table that is drawn.
    KernelErrorDisplay : One feature map at several sizes.

    References
    ----------
    The errors are those of `skrf.theory.compare`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.plotting import ComparisonDisplay
    >>> X = np.random.default_rng(0).normal(size=(60, 3)) / 2
    >>> display = ComparisonDisplay.from_data(X, n_components=32)
    >>> [label.get_text() for label in display.ax_.get_yticklabels()][0] == display.table[0].name
    True
    """

    table: ComparisonTable

    @classmethod
    def from_table(cls, table: ComparisonTable, *, ax: "Axes | None" = None) -> Self:
        """Plot a table that `skrf.theory.compare` returned.

        Parameters
        ----------
        table : ComparisonTable
            The table.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        ComparisonDisplay
            The display, drawn.
        """
        return cls(table).plot(ax)

    @classmethod
    def from_data(
        cls, X: Array, Y: Array | None = None, *, ax: "Axes | None" = None, **params: Any
    ) -> Self:
        """Compare feature maps on data, and plot the result.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Queries.
        Y : array-like of shape (n_keys, n_features), default=None
            Keys; None takes X.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.
        **params : dict
            Passed to `skrf.theory.compare`.

        Returns
        -------
        ComparisonDisplay
            The display, drawn.
        """
        return cls(compare(X, Y, **params)).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw a point for every measured error, and a mark for every predicted one.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        ComparisonDisplay
            The display.
        """
        from matplotlib.ticker import LogLocator, NullLocator

        (axis,) = _axes(self, ax)
        places = np.arange(len(self.table))
        axis.plot([row.measured for row in self.table], places, "o", label="measured")
        for source, mark, label in (("exact", "|", "predicted"), ("bound", "<", "bound")):
            known = [i for i in places if self.table[i].source == source]
            values = np.array([self.table[i].predicted for i in known])
            if np.isfinite(values).any():
                axis.plot(values, known, mark, color="black", markersize=10, label=label)
        axis.set_yticks(places, [row.name for row in self.table])
        axis.invert_yaxis()
        axis.set(xscale="log", xlabel="relative error of the kernel matrix")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(color="0.9")
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        return self


@dataclass(eq=False, repr=False)
class StateSequenceDisplay:
    """A series coloured by the states of a hidden Markov model, with their posteriors below.

    Use `from_estimator` to make one.

    Parameters
    ----------
    series : ndarray of shape (n_samples,)
        What is drawn above.
    states : ndarray of int of shape (n_samples,)
        The state of every sample.
    posteriors : ndarray of shape (n_samples, n_states)
        Posteriors of the states.

    Attributes
    ----------
    ax_ : ndarray of matplotlib Axes
        Series and posteriors.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    skrf.graphical.KernelHMM : The model.

    References
    ----------
    Matplotlib: A 2D graphics environment (2007).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import KernelHMM
    >>> from skrf.plotting import StateSequenceDisplay
    >>> rng = np.random.default_rng(0)
    >>> series = np.concatenate([rng.normal(size=60), 5 + rng.normal(size=60)])
    >>> model = KernelHMM(2, emissions="gaussian", random_state=0).fit(series)
    >>> display = StateSequenceDisplay.from_estimator(model, series)
    >>> len(display.ax_), display.posteriors.shape
    (2, (120, 2))
    """

    series: np.ndarray
    states: np.ndarray
    posteriors: np.ndarray

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Array,
        *,
        column: int = 0,
        algorithm: str = "viterbi",
        ax: "Axes | None" = None,
    ) -> Self:
        """Decode a series, and plot it.

        Parameters
        ----------
        model : KernelHMM
            A model.
        X : array-like of shape (n_samples,) or (n_samples, p)
            One sequence of symbols or rows.
        column : int, default=0
            Which column of X is drawn.
        algorithm : {"viterbi", "posterior"}, default="viterbi"
            What states are: those of the most probable path, or the most probable ones.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        StateSequenceDisplay
            The display, drawn.
        """
        states, posteriors = model.predict(X, algorithm=algorithm), model.predict_proba(X)
        rows = np.ma.asarray(X).reshape(len(states), -1)
        return cls(rows[:, column], states, posteriors).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw the samples in the colours of their states, and posteriors one upon the other.

        Parameters
        ----------
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        StateSequenceDisplay
            The display.
        """
        from matplotlib import colormaps

        above, below = _axes(self, ax, 2, stacked=True)
        places, n_states = np.arange(len(self.states)), self.posteriors.shape[1]
        colormap = colormaps["tab10" if n_states <= 10 else "turbo"]
        colors = [colormap(k if n_states <= 10 else k / (n_states - 1)) for k in range(n_states)]
        above.plot(places, self.series, color="0.8", linewidth=0.8, zorder=0)
        for state in np.unique(self.states):
            at = self.states == state
            above.plot(places[at], self.series[at], ".", color=colors[state], label=f"{state}")
        above.set(ylabel="series")
        above.legend(title="state", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        below.stackplot(places, self.posteriors.T, colors=colors)
        below.set(xlabel="sample", ylabel="posterior", ylim=(0, 1), xlim=(0, len(places) - 1))
        return self
