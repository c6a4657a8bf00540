"""Displays show the numbers that they were made of."""

import numpy as np
import pytest

from skrf import AdaptiveRF, ApproxKernelAttention, OptimalPositiveRF, RFFSampler
from skrf.attention import exact_attention
from skrf.graphical import KernelHMM
from skrf.theory import compare

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

from skrf.plotting import (  # noqa: E402
    AttentionMatrixDisplay,
    ComparisonDisplay,
    KernelErrorDisplay,
    StateSequenceDisplay,
)

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)) / 2, RNG.normal(size=(30, 3)) / 2


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    matplotlib.pyplot.close("all")


def test_kernel_errors_are_measured_beside_predicted():
    features = RFFSampler(64, coupling="iid", random_state=0).fit(X, keys=Y)
    display = KernelErrorDisplay.from_estimator(features, X, Y, n_components=[16, 64], n_draws=40)
    np.testing.assert_array_equal(display.exact, features.exact_kernel(X, Y))
    np.testing.assert_array_equal(display.estimate, features.approximate_kernel(X, Y))
    # Root mean squares over 40 draws of 1,200 dependent errors are known to about 20 %.
    measured = np.sqrt(np.mean(display.measured**2, axis=1))
    np.testing.assert_allclose(measured, display.predicted, rtol=0.3)
    np.testing.assert_allclose(display.predicted[0] / display.predicted[1], 2, rtol=1e-9)
    left, right = display.ax_
    np.testing.assert_array_equal(left.lines[0].get_ydata(), display.estimate.ravel())
    np.testing.assert_array_equal(right.lines[-1].get_ydata(), display.predicted)
    assert display.name == "RFFSampler" and right.get_legend() is not None


def test_draws_repeat_on_given_axes_and_differ():
    axes = Figure().subplots(1, 2)
    # Without a closed form no prediction is drawn.
    features = OptimalPositiveRF(16, coupling="sobol", random_state=0).fit(X)
    first, second, other = (
        KernelErrorDisplay.from_estimator(features, X, random_state=seed, ax=axes)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.measured, second.measured)
    assert (first.measured != other.measured).any()
    assert np.isnan(first.predicted).all()
    legend = first.ax_[1].get_legend().get_texts()
    assert "predicted" not in [text.get_text() for text in legend]
    assert first.figure_ is axes[0].figure and list(first.ax_) == list(axes)
    with pytest.raises(ValueError, match="ax must be 2 axes, got 1"):
        first.plot(axes[0])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_matrices_are_those_of_the_operator(causal):
    attention = ApproxKernelAttention(AdaptiveRF(32, random_state=0), causal=causal, scale=0.5)
    q, k = RNG.normal(size=(2, 20, 4))
    display = AttentionMatrixDisplay.from_estimator(attention, q, k)
    wanted = exact_attention(q, k, np.eye(20), causal=causal, scale=0.5)
    np.testing.assert_array_equal(display.exact, wanted)
    np.testing.assert_array_equal(display.approximate, attention.attention_matrix(q, k))
    images = [axis.images[0] for axis in display.ax_]
    np.testing.assert_array_equal(images[1].get_array(), display.approximate)
    assert images[0].get_clim() == images[1].get_clim() == (0, wanted.max())
    with pytest.raises(ValueError, match="q and k must be those of one head"):
        AttentionMatrixDisplay.from_estimator(attention, q[None], k)


def test_comparisons_show_every_mechanism():
    table = compare(X, n_components=16)
    display = ComparisonDisplay.from_table(table)
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels == [row.name for row in table]
    measured = display.ax_.lines[0].get_xdata()
    np.testing.assert_array_equal(measured, [row.measured for row in table])
    again = ComparisonDisplay.from_data(X, n_components=16)
    assert [row.name for row in again.table] == labels


def test_states_colour_a_series_above_their_posteriors():
    series = np.concatenate([RNG.normal(size=30), 8 + RNG.normal(size=30)])
    model = KernelHMM(2, emissions="gaussian", random_state=0).fit(series)
    display = StateSequenceDisplay.from_estimator(model, series)
    above, below = display.ax_
    line, *dots = above.lines
    np.testing.assert_array_equal(line.get_ydata(), series)
    path = model.predict(series, algorithm="viterbi")
    for state, of_state in enumerate(dots):
        np.testing.assert_array_equal(of_state.get_xdata(), np.flatnonzero(path == state))
        np.testing.assert_array_equal(of_state.get_ydata(), series[path == state])
    assert len(below.collections) == 2
    np.testing.assert_array_equal(display.posteriors, model.predict_proba(series))
    axes = Figure().subplots(2)
    again = display.plot(axes)
    assert list(again.ax_) == list(axes)
