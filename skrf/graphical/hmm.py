"""Hidden Markov models with kernel transitions and emissions, linear in the number of states."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np
from scipy.special import softmax
from sklearn.exceptions import NotFittedError

from .._memory import check_fits
from .._threads import rows_of_call
from .._typing import Array, RandomState, Transformer
from .._validation import (
    Interval,
    StrOptions,
    as_generator,
    check_integer,
    commit,
    draft_of,
    draw_seed,
    naming,
)
from ._batches import Adam, FreeArrays
from ._corrections import corrected
from ._emissions import (
    GaussianEmissions,
    PrecomputedEmissions,
    check_covariance_type,
    check_log_likelihoods,
    check_rows,
    clustered,
)
from ._evidence import check_lengths, split
from ._learning import gradients, learn
from ._maximum_likelihood import MaximumLikelihood
from ._potentials import as_array, check_embeddings, fitted_maps, unmasked
from ._recursions import ANY, Model

_ROLES = ("states", "symbols", "targets", "emitters", "start_embedding")  # of embeddings
_LARGEST = 1e130  # largest standard deviation of embeddings
_MASKS = ("transition_mask", "start_mask", "emission_mask")
_SCALE, _WIDTH, _WIDEST = 0.5, 16, 128  # of embeddings that are drawn
_TABLE_ENTRIES = 2**24  # limit on the size of transmat_ and emissionprob_
_CODES, _FEW_CODES = 100, 1000  # integers per symbol seen, or in all, that may encode symbols


@dataclass(frozen=True)
class FilterState:
    """State of an online filter.

    Parameters
    ----------
    posterior : ndarray of shape (n_states,) or (n_sequences, n_states)
        Distribution of the current state given all symbols so far.
    log_prob : float or ndarray of shape (n_sequences,)
        Log probability of the symbols so far.
    log_posterior : ndarray of the shape of `posterior`, default=None
        Its logarithm, from which filters go on where transitions are so rare, or forbidden, that
        shares may underflow; None otherwise.

    See Also
    --------
    KernelHMM.filter_step : Returns the next state.
    KernelHMM.predict_next : Predicts the next symbol from it.

    References
    ----------
    Random Fourier features for scaling Markov random fields (2020), section 3.
    """

    posterior: np.ndarray
    log_prob: float | np.ndarray
    log_posterior: np.ndarray | None = None


class KernelHMM(MaximumLikelihood):
    r"""A hidden Markov model of symbols or rows of numbers, with kernel transitions and emissions.

    The probability of a transition from state z to z' is proportional to exp(x_z . y_z'), and that
    of symbol x in state z to exp(e_z . o_x). With random features a filter step costs O(n_states *
    n_components), and no n_states x n_states matrix is formed. The model with features is a valid
    probability model in its own right: its likelihood, samples and posteriors agree.

    If all embeddings are float32, so are probabilities, which halves the memory and nearly halves
    the time; log probabilities and `fit` always use float64.

    Symbols may be missing: masked entries of a ``numpy.ma.MaskedArray`` are summed out, and so is
    NaN among symbols that are floats.

    Parameters
    ----------
    states : int or array-like of shape (n_states, d)
        Number of states, whose embeddings `fit` then draws; or embeddings of the states as the
        earlier state of a transition.
    symbols : int or array-like of shape (n_symbols, d), default=None
        Embeddings of the symbols, or their number if `states` is one; None is then the largest
        symbol that `fit` sees, plus 1, which must be at most 1,000, or 100 times the number of
        distinct symbols.
    emissions : {"categorical", "gaussian", "precomputed"} or object, default="categorical"
        "categorical": symbols. "gaussian": rows of numbers, with a normal distribution for every
        state, which `fit` learns. "precomputed": rows with the log likelihood of every state, of a
        model of your own; -inf forbids a state. An object with the methods of `GaussianEmissions`
        has emissions of any kind.
    covariance_type : {"diag", "full", "tied", "spherical"}, default="diag"
        Covariances of "gaussian" emissions: diagonal, any, the same for all states, or multiples of
        the identity.
    transition_mask : array-like of bool of shape (n_states, n_states), default=None
        Which transitions are allowed (True); the others have probability 0, also after `fit`. Masks
        need the exact kernel.
    start_mask : array-like of bool of shape (n_states,), default=None
        Which first states are allowed.
    emission_mask : array-like of bool of shape (n_states, n_symbols), default=None
        Which symbols a state may emit.
    targets : array-like of shape (n_states, d), default=None
        Embeddings of the states as the later state of a transition; None means `states`, and `fit`
        then learns one array for both.
    emitters : array-like of shape (n_states, d), default=None
        Embeddings of the states for emissions; None means `states`, also in `fit`.
    start_embedding : array-like of shape (d,), default=None
        The first state is drawn as the successor of a state with this embedding.
    start_prob : array-like of shape (n_states,), default=None
        Distribution of the first state, in place of `start_embedding`; `fit` keeps it. If both are
        None it is uniform at first, and learnt by `fit` with ``normalization="local"``.
    feature_map : feature map, "exact" or None, default=None
        A positive feature map for the softmax kernel, or "exact" for the kernel itself. None is
        "exact" where features would save at most half of the time (up to 1,024 states), otherwise
        ``AdaptiveRF(256)``. A map is fitted to the given embeddings, and `fit` holds it fixed while
        the embeddings move. A FrozenEstimator stays as it was fitted, including its sigma:
        potentials are then those of sigma times the embeddings.
    normalization : {"local", "global"}, default="local"
        "local" normalises every transition and emission. "global" normalises only the product over
        a sequence of a given length; symbols and states then have no conditional distributions of
        their own.
    max_iter : int, default=None
        Maximum number of iterations of `fit`, or of passes over the sequences if it uses batches.
        None means 300 for up to 128 states in float64, otherwise 100.
    tol : float, default=None
        `fit` stops when the relative gain of the log likelihood falls below this value; it has no
        effect with batches. None means 1e-8 for up to 128 states in float64, otherwise 1e-6.
    learning_rate : float, default=0.04
        Length of a step on a batch, relative to the usual size of the gradients. In `fit` it falls
        linearly to 0; in `partial_fit` it stays constant.
    weight_decay : float, default=0.0
        Every step on a batch shrinks the embeddings by this share times the learning rate. It keeps
        a model with many parameters from memorising its sequences: 0.2 is good for several hundred
        states and 200,000 words.
    warm_start : bool, default=False
        Whether `fit` continues from the embeddings learned before instead of the given ones.
    n_init : int or "screened", default=None
        Number of starts of `fit`, of which the best is kept. The first starts from the given
        embeddings, the others from normal draws with the same root mean square. "screened": 16
        starts, twelve of them along random paths of states, take 40 steps of expectation
        maximisation, the best three up to 200 more, and L-BFGS finishes two of these. The order of
        states is then any, even if emissions are given. That needs the exact kernel,
        ``normalization="local"``, no batches, roles with embeddings of their own and as wide as
        there are states (at most 128), and is 1 otherwise. None means "screened" if `states` is a
        number, as it does for `from_random`, and 1 for given embeddings.
    random_state : int, RandomState instance or None, default=None
        Source of the draw of the features, if the map has no random_state, and of the random
        choices of `fit`: other starts, batches and the validation share.
    verbose : int or bool, default=False
        Whether `fit` prints the log likelihood after every iteration.

    Attributes
    ----------
    states_, symbols_, targets_, emitters_, start_embedding_ : ndarray
        After `fit`, the learned embeddings (`start_embedding_` is None if none was given); all
        methods then use them.
    history_ : list of float
        Log likelihood after every iteration of `fit`; for a pass over batches, the sum of the log
        likelihoods of the batches, each taken before its step.
    validation_history_ : list of float
        Mean log probability per symbol of the validation sequences after every iteration.
    converged_ : bool
        Whether `fit` ended as planned: because of `tol`, after all passes over batches, or because
        of a validation score or callback. Otherwise a warning gave the reason.
    startprob_, transmat_, emissionprob_ : ndarray
        The tables of a hidden Markov model, computed on access; each may have at most 16,777,216
        entries.
    emissions_ : object
        The emissions of rows with what `fit` learnt about them.
    means_, covars_ : ndarray of shape (n_states, p) and (n_states, p, p)
        Means and covariances of Gaussian emissions.
    feature_map_ : dict
        The map used for ``"transition"`` and for ``"emission"``.

    See Also
    --------
    ChainMRF : Undirected, without symbols.
    FilterState : The state of the online filter.

    References
    ----------
    Random Fourier features for scaling Markov random fields (2020), sections 3 and 5.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import KernelHMM
    >>> rng = np.random.default_rng(0)
    >>> model = KernelHMM(rng.normal(size=(200, 4)), rng.normal(size=(10, 4)), random_state=0)
    >>> X, states = model.sample(50, random_state=0)
    >>> X.shape, model.predict_proba(X).shape
    ((50, 1), (50, 200))
    >>> bool(model.score(X) < 0)
    True

    Two states of a series of numbers, learnt from it alone:

    >>> series = np.concatenate([rng.normal(size=200), 6 + rng.normal(size=200)] * 2)
    >>> regimes = KernelHMM(2, emissions="gaussian", random_state=0).fit(series)
    >>> np.sort(regimes.means_[:, 0]).round(1)
    array([-0.1,  6. ])
    """

    _parameter_constraints = {
        "normalization": [StrOptions({"local", "global"})],
        "n_init": [Interval(Integral, 1, None, closed="left"), StrOptions({"screened"}), None],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
    }
    _parameter_constraints = MaximumLikelihood._parameter_constraints | _parameter_constraints
    _arrays = (*_ROLES, "start_prob", *_MASKS)
    # Not get_params, which reads the signature on each call: every filter step comes through here.
    _settings = property(
        attrgetter("feature_map", "normalization", "random_state", "emissions", "covariance_type")
    )

    def __init__(
        self,
        states: int | Array,
        symbols: int | Array | None = None,
        *,
        emissions: Any = "categorical",
        covariance_type: Literal["diag", "full", "tied", "spherical"] = "diag",
        transition_mask: Array | None = None,
        start_mask: Array | None = None,
        emission_mask: Array | None = None,
        targets: Array | None = None,
        emitters: Array | None = None,
        start_embedding: Array | None = None,
        start_prob: Array | None = None,
        feature_map: Transformer | Literal["exact"] | None = None,
        normalization: Literal["local", "global"] = "local",
        max_iter: int | None = None,
        tol: float | None = None,
        learning_rate: float = 0.04,
        weight_decay: float = 0.0,
        warm_start: bool = False,
        n_init: int | Literal["screened"] | None = None,
        random_state: RandomState = None,
        verbose: int = False,
    ) -> None:
        self.states = states
        self.symbols = symbols
        self.emissions = emissions
        self.covariance_type = covariance_type
        self.transition_mask = transition_mask
        self.start_mask = start_mask
        self.emission_mask = emission_mask
        self.targets = targets
        self.emitters = emitters
        self.start_embedding = start_embedding
        self.start_prob = start_prob
        self.feature_map = feature_map
        self.normalization = normalization
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warm_start = warm_start
        self.n_init = n_init
        self.random_state = random_state
        self.verbose = verbose

    def __repr__(self, N_CHAR_MAX=700):
        """Return the parameters that were given, with shapes in place of arrays."""
        short = copy.copy(self)
        for name in self._arrays:
            if getattr(self, name) is not None and not isinstance(getattr(self, name), Integral):
                setattr(short, name, _Shape(getattr(self, name)))
        return super(KernelHMM, short).__repr__(N_CHAR_MAX)

    @classmethod
    def from_random(
        cls,
        n_states: int,
        n_symbols: int,
        width: int = 16,
        *,
        scale: float = 0.5,
        random_state: RandomState = None,
        **params: Any,
    ) -> Self:
        """Return a model with separate random embeddings for every role, as a start for `fit`.

        Parameters
        ----------
        n_states, n_symbols : int
            Numbers of states and symbols.
        width : int, default=16
            Width of the embeddings.
        scale : float, default=0.5
            Standard deviation of their entries, which are normal. That of the log potentials is
            ``scale**2 * sqrt(width)``; 0.5 to 1 for the latter is a good start for `fit`, while
            larger values lead to worse maxima.
        random_state : int, RandomState instance or None, default=None
            Source of the embeddings and of the draw of the features.
        **params : dict
            Further parameters of the class.

        Returns
        -------
        KernelHMM
            The model.
        """
        for name, value in (("n_states", n_states), ("n_symbols", n_symbols), ("width", width)):
            check_integer(name, value)
        scale = scale.item() if isinstance(scale, np.generic) else scale  # 1e130 is not a float32
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 <= scale <= _LARGEST:
            raise ValueError(f"scale must be a number from 0 to {_LARGEST:g}, got {scale!r}.")
        sizes_text = f"n_states={n_states!r}, n_symbols={n_symbols!r} and width={width!r}"
        check_fits(8 * int(width) * (3 * int(n_states) + int(n_symbols)), sizes_text, "embeddings")
        rng = as_generator(random_state)
        sizes = dict.fromkeys(("states", "targets", "emitters"), n_states) | {"symbols": n_symbols}
        with naming("n_states, n_symbols or width"):
            embeddings = {role: scale * rng.normal(size=(n, width)) for role, n in sizes.items()}
        params = {"n_init": "screened", "random_state": draw_seed(rng), **params}
        return cls(**embeddings, **params)

    @classmethod
    def from_tables(
        cls,
        startprob: Array,
        transmat: Array,
        emissionprob: Array | None = None,
        *,
        means: Array | None = None,
        covars: Array | None = None,
        **params: Any,
    ) -> Self:
        """Return the model of given tables, such as those of hmmlearn; zeros stay 0 in `fit`.

        Parameters
        ----------
        startprob : array-like of shape (n_states,)
            Distribution of the first state, which `fit` learns.
        transmat : array-like of shape (n_states, n_states)
            Distributions of the next state.
        emissionprob : array-like of shape (n_states, n_symbols), default=None
            Distributions of the symbols.
        means : array-like of shape (n_states, p), default=None
            Means of normal emissions, in place of `emissionprob`.
        covars : array-like of shape (n_states, p) or (n_states, p, p), default=None
            Their variances or covariances. Without a `covariance_type` these stay diagonal if all
            are, and may otherwise become any.
        **params : dict
            Further parameters of the class.

        Returns
        -------
        KernelHMM
            The model.

        Raises
        ------
        ValueError
            If rows do not hold probabilities, or emissions are given twice or not at all.

        Examples
        --------
        >>> from skrf.graphical import KernelHMM
        >>> left_right = KernelHMM.from_tables(
        ...     [1.0, 0.0], [[0.9, 0.1], [0.0, 1.0]], [[0.5, 0.5], [0.1, 0.9]]
        ... )
        >>> left_right.transmat_.round(3)
        array([[0.9, 0.1],
               [0. , 1. ]])
        >>> left_right.predict([0, 0, 1, 1, 1, 1, 1], algorithm="viterbi")
        array([0, 0, 1, 1, 1, 1, 1])
        """
        start = _check_shares(np.shape(startprob)[:1], "startprob", startprob)
        n = len(start)
        moves = _check_shares((n, n), "transmat", transmat)
        if (emissionprob is None) == (means is None) or (means is None) != (covars is None):
            raise ValueError("Pass emissionprob, or means and covars, and not both.")
        # State i is e_i; one more column holds the start, as the successor of that direction.
        tables = {"states": np.eye(n, n + 1), "start_embedding": np.eye(n + 1)[n]}
        tables["targets"] = _finite_logs(np.vstack([moves, start])).T
        tables |= {"transition_mask": moves > 0, "start_mask": start > 0}
        if emissionprob is not None:
            shape = n, *np.shape(emissionprob)[1:]
            shares = _check_shares(shape, "emissionprob", emissionprob)
            tables |= {"emitters": np.eye(n, n + 1), "emission_mask": shares > 0}
            tables["symbols"] = np.pad(_finite_logs(shares).T, ((0, 0), (0, 1)))
        if means is not None:
            kind = "full"
            if np.ndim(covars) == 2 or not np.any(covars * (1 - np.eye(np.shape(covars)[-1]))):
                kind = "diag"
            kind = params.get("covariance_type", kind)
            tables["emissions"] = GaussianEmissions(means, covars, covariance_type=kind)
        for name in _MASKS:
            if name in tables and tables[name].all():
                del tables[name]
        return cls(**{"feature_map": "exact", **tables, **params})

    # ---------------------------------------------------------------- the model

    @property
    def n_states_(self) -> int:
        """Number of states."""
        return len(self._model.start)

    def _make_model(self):
        self._validate_params()
        for name in ("states", "symbols"):
            if isinstance(getattr(self, name), Integral):
                raise NotFittedError(
                    f"This KernelHMM is not fitted: {name} must hold their embeddings before fit "
                    f"draws them, got {getattr(self, name)!r}. Call fit first, or "
                    "KernelHMM.from_random(n_states, n_symbols), which draws them at once."
                )
        emitter = self._emitter()
        if isinstance(emitter, str):
            raise NotFittedError(
                "emissions='gaussian' has no means before fit: call fit, or pass "
                "GaussianEmissions(means, covars)."
            )
        return self._build(self._check_embeddings(), emitter)

    def _build(self, embeddings, emitter):
        """Return the model of embeddings and emissions."""
        learns_start = self.start_prob is self.start_embedding is None
        maps, masks = self._make_maps(embeddings), self._check_masks(embeddings)
        if masks and any(source is not None and source.sides for source in maps):
            raise ValueError(
                f"{', '.join(f'{name}_mask' for name in masks)} needs the kernel itself: pass "
                f"feature_map='exact', got {self.feature_map!r}."
            )
        return Model(
            embeddings,
            maps,
            self._start_prob(embeddings, masks.get("start")),
            self.normalization == "local",
            self._dtype,
            masks=masks,
            emitter=emitter,
            learns_start=learns_start and self.normalization == "local",
        )

    def _emitter(self):
        """Return the emissions if they are of rows, "gaussian", or None for symbols."""
        check_covariance_type(self.covariance_type)
        emissions = self.emissions
        if isinstance(emissions, str) and emissions == "categorical":
            return None
        if isinstance(emissions, str) and emissions == "precomputed":
            emissions = PrecomputedEmissions()
        names = "log_likelihood", "update", "sample", "n_parameters"
        is_one = not isinstance(emissions, type) and all(hasattr(emissions, name) for name in names)
        if not is_one and not (isinstance(emissions, str) and emissions == "gaussian"):
            raise ValueError(
                "emissions must be 'categorical', 'gaussian', 'precomputed' or an object with the "
                f"methods of GaussianEmissions, got {emissions!r}."
            )
        if self.symbols is not None or self.normalization != "local":
            raise ValueError(
                f"emissions={self.emissions!r} needs symbols=None and normalization='local', got "
                f"normalization={self.normalization!r} and symbols "
                f"{'None' if self.symbols is None else 'that are given'}."
            )
        return emissions

    def _check_masks(self, embeddings):
        """Return masks by name, each with something allowed in every row."""
        n, masks = len(embeddings["states"]), {}
        n_symbols = None if embeddings["symbols"] is None else len(embeddings["symbols"])
        shapes = {"transition": (n, n), "start": (n,), "emission": (n, n_symbols)}
        for name, shape in shapes.items():
            mask = getattr(self, f"{name}_mask")
            if mask is None:
                continue
            mask = _check_mask(f"{name}_mask", mask, shape).copy()
            if not mask.any(axis=-1).all():
                state = f" of state {int(np.argmin(mask.any(axis=-1)))}" if mask.ndim > 1 else ""
                raise ValueError(f"{name}_mask allows nothing{state}.")
            masks[name] = mask
        return masks

    def _draw_embeddings(self, n_symbols, rng):
        """Return random embeddings of a number of states, by role."""
        n = check_integer("states", self.states)
        for name in ("targets", "emitters", "start_embedding"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} needs embeddings as states, got states={n!r}.")
        if self.symbols is not None:
            n_symbols = check_integer("symbols", self.symbols)
        width = max(_WIDTH, min(n, _WIDEST))
        sizes = {"states": n, "symbols": n_symbols, "targets": n, "emitters": n}
        check_fits(8 * width * (3 * n + (n_symbols or 0)), f"states={n!r}", "embeddings")
        drawn = {
            role: None if size is None else _SCALE * rng.normal(size=(size, width))
            for role, size in sizes.items()
        }
        return drawn | {"start_embedding": None}

    @property
    def _dtype(self):
        """float32 if all given embeddings are, otherwise float64."""
        embeddings = (getattr(self, role) for role in _ROLES)
        types = {getattr(value, "dtype", None) for value in embeddings if value is not None}
        return np.dtype(np.float32 if types == {np.dtype(np.float32)} else np.float64)

    def _check_embeddings(self):
        states = self._checked("states")
        n, width = states.shape
        symbols = None if self.symbols is None else self._checked("symbols", width)
        checked = {"states": states, "symbols": symbols}
        for name in ("targets", "emitters"):
            checked[name] = states if getattr(self, name) is None else self._checked(name, width)
            if len(checked[name]) != n:
                raise ValueError(f"{name} has {len(checked[name])} rows; states has {n}.")
        checked["start_embedding"] = None
        if self.start_embedding is not None:
            if self.start_prob is not None:
                raise ValueError("Pass start_embedding or start_prob, not both.")
            start = as_array("start_embedding", self._own("start_embedding"), np.float64)
            start = np.atleast_2d(start)
            checked["start_embedding"] = check_embeddings(start, "start_embedding", width)
            if len(start) != 1:
                raise ValueError(f"start_embedding must have shape {(width,)}, got {start.shape}.")
        return checked

    def _checked(self, name, width=None):
        return check_embeddings(self._own(name), name, width)

    def _start_prob(self, embeddings, mask):
        n = len(embeddings["states"])
        if self.start_prob is None:
            allowed = np.ones(n) if mask is None else mask.astype(float)
            return allowed / allowed.sum() if self.normalization == "local" else allowed
        start = _check_shares((n,), "start_prob", self._own("start_prob"))
        if mask is not None and start[~mask].any():
            raise ValueError("start_prob must be 0 where start_mask forbids a state.")
        return start

    def _make_maps(self, embeddings):
        earlier = embeddings["states"]
        if embeddings["start_embedding"] is not None:
            earlier = np.vstack([earlier, embeddings["start_embedding"]])
        seed = draw_seed(self.random_state)
        move = fitted_maps(self.feature_map, earlier, embeddings["targets"], seed)
        is_shared = embeddings["targets"] is embeddings["states"]
        if move.sides and is_shared and self.normalization == "global":
            move = corrected(move, embeddings["states"])
        if embeddings["symbols"] is None:
            return move, None
        sides = embeddings["emitters"], embeddings["symbols"]
        return move, fitted_maps(self.feature_map, *sides, seed)

    @property
    def feature_map_(self) -> dict[str, Any]:
        """The maps of transitions and emissions: "exact" or the fitted feature map."""
        pairs = zip(("transition", "emission"), self._model.maps, strict=True)
        return {name: maps and maps.feature_map for name, maps in pairs}

    @property
    def startprob_(self) -> np.ndarray:
        """Distribution of the first state, of shape (n_states,)."""
        self._check_table("startprob_")
        return np.exp(self._model.log_start)

    @property
    def transmat_(self) -> np.ndarray:
        """Distributions of the next state, of shape (n_states, n_states)."""
        self._check_table("transmat_", "states", "states")
        return np.exp(self._model.transition.pair.matrix)

    @property
    def emissionprob_(self) -> np.ndarray:
        """Distributions of the symbol, of shape (n_states, n_symbols)."""
        self._check_table("emissionprob_", "states", "symbols")
        return np.exp(self._model.emission.pair.matrix)

    @property
    def emissions_(self) -> Any:
        """Copy of the emissions of rows: those that `fit` learnt, or those that were given."""
        emitter = self.emissions if self._fitted is None else self._fitted.emitter
        if emitter is None or isinstance(emitter, str):
            raise AttributeError("emissions_ is there after a fit with emissions of rows.")
        return copy.deepcopy(emitter)

    @property
    def means_(self) -> np.ndarray:
        """Means of Gaussian emissions, of shape (n_states, p)."""
        return self.emissions_.means

    @property
    def covars_(self) -> np.ndarray:
        """Covariances of Gaussian emissions, of shape (n_states, p, p)."""
        return self.emissions_.covars

    def _check_table(self, name, *roles):
        """Raise AttributeError, before anything is computed, if there is no such table."""
        self._check_local(name, AttributeError)
        if self._fitted is None and isinstance(self.states, Integral):
            raise AttributeError(f"{name} is there after fit.")
        embeddings = self._check_embeddings() if self._fitted is None else self._fitted.embeddings
        if "symbols" in roles and embeddings["symbols"] is None:
            raise AttributeError(f"{name} needs symbols, which are None.")
        shape = [len(embeddings[role]) for role in roles]
        if math.prod(shape) > _TABLE_ENTRIES:
            raise AttributeError(
                f"{name} would have {shape[0]} x {shape[1]} entries; tables may have at most "
                f"{_TABLE_ENTRIES}. No other method needs it."
            )

    def _check_local(self, name, kind=ValueError):
        is_local = self.normalization == "local" if self._fitted is None else self._fitted.is_local
        if not is_local:
            raise kind(
                f"{name} needs normalization='local': with 'global' what is probable at a position "
                "depends on how long the sequence will be."
            )

    # ---------------------------------------------------------------- inference

    def score(self, X: Array, lengths: Array | None = None) -> float:
        """Return the log probability of the symbols, summed over sequences.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols of all sequences, concatenated; masked entries are missing.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        float
            The log probability.
        """
        return float(self.log_prob(X, lengths).sum())

    def log_prob(self, X: Array, lengths: Array | None = None) -> np.ndarray:
        """Return the log probability of the symbols of every sequence.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols of all sequences, concatenated; masked entries are missing.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        ndarray of shape (n_sequences,)
            Log probabilities, which add up to `score`.
        """
        model, sequences = self._sequences(X, lengths)
        return model.log_prob(sequences)

    def _sequences(self, X, lengths):
        """Return the model for what was observed, and sequences of symbols or of positions."""
        return _with_sequences(self._model, X, lengths)

    def _possible(self, X, lengths):
        """Do the same, and raise if there are sequences without any probability."""
        return _check_possible(*self._sequences(X, lengths))

    def score_samples(self, X: Array, lengths: Array | None = None) -> tuple[float, np.ndarray]:
        """Return the log probability of the symbols, and the posterior of every sample.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        log_prob : float
            The result of `score`.
        posteriors : ndarray of shape (n_samples, n_states)
            The result of `predict_proba`.
        """
        model, sequences = self._possible(X, lengths)
        if run := model.run("posteriors", sequences):
            log_prob = run.log_probs - model.log_normaliser(sequences)
            return float(log_prob.sum()), run.smoothed()
        return float(model.log_prob(sequences).sum()), model.all_posteriors(sequences)

    def aic(self, X: Array, lengths: Array | None = None) -> float:
        """Return Akaike's information criterion; lower is better.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        float
            -2 `score` + 2 p. The p parameters are those of the distributions that embeddings of
            some width can express, which are fewer than the entries of wide embeddings: with w =
            min(width, n, m - 1), w (n + m - 1 - w) for n states, and m states or symbols that may
            follow; n - 1 for the start if `fit` learns it; and what the emissions count. There are
            never more than entries of embeddings, or than probabilities that masks leave free.
        """
        return 2.0 * self._n_parameters() - 2 * self.score(X, lengths)

    def bic(self, X: Array, lengths: Array | None = None) -> float:
        """Return the Bayesian information criterion; lower is better.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        float
            -2 `score` + p log(n), with p as in `aic` and n the number of samples that are not
            missing.
        """
        model, sequences = self._sequences(X, lengths)
        n_seen = sum(np.count_nonzero(sequence != ANY) for sequence in sequences)
        if model.data is not None:
            n_seen -= np.count_nonzero(np.ma.getmaskarray(model.data).all(axis=1))
        score = float(model.log_prob(sequences).sum())
        return self._n_parameters() * np.log(max(n_seen, 1)) - 2 * score

    def _n_parameters(self):
        model = self._model
        arrays = {id(value): value for value in model.embeddings.values() if value is not None}
        n, width = model.embeddings["states"].shape
        counts = [_n_free(n, n, width, model.masks.get("transition"))]
        if model.emission is not None:
            counts.append(_n_free(n, model.n_symbols, width, model.masks.get("emission")))
        if model.start_factor is not None:
            counts.append(_n_free(1, n, width, model.masks.get("start")))
        total = min(sum(counts), sum(value.size for value in arrays.values()))
        if model.learns_start:
            total += np.count_nonzero(model.masks.get("start", np.ones(n))) - 1
        if model.emitter is not None:
            total += model.emitter.n_parameters
        return total

    def predict_proba(
        self, X: Array, lengths: Array | None = None, *, filtered: bool = False
    ) -> np.ndarray:
        """Return the posterior distribution of the state at every sample.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.
        filtered : bool, default=False
            Whether to condition only on the symbols up to the sample, like an online filter, rather
            than on the whole sequence.

        Returns
        -------
        ndarray of shape (n_samples, n_states)
            Rows sum to 1.
        """
        if filtered:
            self._check_local("filtered=True")
        model, sequences = self._possible(X, lengths)
        shape = sum(map(len, sequences)), len(model.start)
        n_bytes = math.prod(shape) * model.dtype.itemsize
        check_fits(n_bytes, f"X with {shape[0]} rows", f"posteriors of {shape[1]} states")
        return model.all_posteriors(sequences, filtered)

    def predict_next(self, X: Array | None = None, state: FilterState | None = None) -> np.ndarray:
        """Return the distribution of the next symbol.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,), default=None
            The symbols of one sequence so far. If both parameters are None, predict the first
            symbol.
        state : FilterState, default=None
            The result of `filter_step` after the symbols so far; replaces X.

        Returns
        -------
        ndarray of shape (n_symbols,) or (n_sequences, n_symbols)
            Distributions, which sum to 1, one per sequence of `state`.

        Examples
        --------
        >>> from skrf.graphical import KernelHMM
        >>> model = KernelHMM.from_random(50, 3, random_state=0)
        >>> state = model.filter_step(1, model.filter_step(2))
        >>> shares = model.predict_next(state=state)
        >>> shares.shape, bool(abs(shares - model.predict_next([2, 1])).max() < 1e-12)
        ((3,), True)
        """
        self._check_local("predict_next")
        model = self._model
        if model.emitter is not None:
            raise ValueError("predict_next needs symbols, which are None: use forecast.")
        _check_known(model, "predict_next")
        if X is not None:
            if state is not None:
                raise ValueError("Pass X or state, not both.")
            return self.forecast(X)[0]
        if state is None:
            return model.emission.passed(model.start)
        before, _ = _check_state(model, state)
        posterior = model.shares(before)
        _check_posterior(posterior, state)
        shares = model.emission.passed(model.transition.passed(posterior))
        return shares if np.ndim(state.log_prob) else shares[0]

    def forecast(
        self, X: Array, steps: int = 1
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distributions of what follows a sequence.

        Parameters
        ----------
        X : array-like of shape (n_samples,) or (n_samples, p)
            One sequence of symbols, or of rows.
        steps : int, default=1
            Number of samples to forecast.

        Returns
        -------
        ndarray of shape (steps, n_symbols), or tuple
            Distributions of symbols. For rows of numbers, the weights of the states (steps,
            n_states), and means (n_states, p) and covariances (n_states, p, p) of Gaussian
            emissions; for other emissions the weights alone.

        Examples
        --------
        >>> from skrf.graphical import KernelHMM
        >>> model = KernelHMM.from_random(5, 3, random_state=0)
        >>> shares = model.forecast([0, 1, 2], steps=4)
        >>> shares.shape, bool(abs(shares[0] - model.predict_next([0, 1, 2])).max() < 1e-12)
        ((4, 3), True)
        """
        self._check_local("forecast")
        model, sequences = self._possible(X, None)
        weights = np.empty((check_integer("steps", steps), len(model.start)))
        last = model.last_posterior(sequences[0])
        for t in range(len(weights)):
            weights[t] = last = model.transition.passed(last)
        if model.emitter is None:
            return model.emission.passed(weights.astype(model.dtype, copy=False))
        if not isinstance(model.emitter, GaussianEmissions):
            return weights
        return weights, self.means_, self.covars_

    def predict(
        self,
        X: Array,
        lengths: Array | None = None,
        *,
        algorithm: Literal["posterior", "map", "viterbi"] = "posterior",
    ) -> np.ndarray:
        """Return the most probable state for each sample; hmmlearn's `predict` uses Viterbi.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.
        algorithm : {"posterior", "map", "viterbi"}, default="posterior"
            As in `decode`, where "viterbi" is the default.

        Returns
        -------
        ndarray of int of shape (n_samples,)
            States.
        """
        return _decoded(*self._sequences(X, lengths), algorithm)[0]

    def decode(
        self,
        X: Array,
        lengths: Array | None = None,
        algorithm: Literal["viterbi", "posterior", "map"] | None = None,
    ) -> tuple[float, np.ndarray]:
        """Return a state for every sample, and the joint log probability of states and symbols.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.
        algorithm : {"viterbi", "posterior", "map"} or None, default=None
            "viterbi" or None: the most probable path. It does not factor through features, so this
            takes time quadratic in the number of states, in blocks of rows. "posterior",
            or "map" as hmmlearn has it: the state with the largest posterior at every sample, in
            linear time.

        Returns
        -------
        log_prob : float
            Log probability of the symbols together with these states.
        states : ndarray of int of shape (n_samples,)
            States.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf.graphical import KernelHMM
        >>> model = KernelHMM.from_random(50, 3, random_state=0)
        >>> X = np.ma.array([0, 2, 1, 1], mask=[0, 0, 1, 0])  # the third symbol is missing
        >>> log_prob, states = model.decode(X)
        >>> states.shape, log_prob >= model.decode(X, algorithm="posterior")[0]
        ((4,), True)
        """
        model, sequences = self._sequences(X, lengths)
        algorithm = "viterbi" if algorithm is None else algorithm
        states, log_joint = _decoded(model, sequences, algorithm)
        return float(log_joint() - model.log_normaliser(sequences).sum()), states

    def filter_step(self, symbol: int | Array, state: FilterState | None = None) -> FilterState:
        """Process the next symbol of one or several streams, in constant memory.

        Parameters
        ----------
        symbol : int or array-like of int of shape (n_sequences,)
            The next symbol; ``numpy.ma.masked`` and masked entries of an array are missing. For
            emissions of rows, the next row, (p,), or those of several streams, (n_sequences, p).
        state : FilterState, default=None
            The result of the previous step; None starts a stream.

        Returns
        -------
        FilterState
            ``posterior`` and ``log_prob`` after the symbol.
        """
        self._check_local("filter_step")
        model = self._model
        symbols = symbol if isinstance(symbol, np.ma.MaskedArray) else as_array("symbol", symbol)
        is_one = np.ndim(symbol) == (model.emitter is not None)
        if model.emitter is None:
            symbols = _check_symbols(model, np.atleast_1d(symbols), "symbol")
        else:
            rows = _check_rows(model, symbols[None] if is_one else symbols)
            model, symbols = model.observing(rows), np.arange(len(rows))
        before, log_prob = None, 0.0
        if state is not None:
            before, log_prob = _check_state(model, state)
            if len(log_prob) != len(symbols):
                raise ValueError(f"state has {len(log_prob)} streams, symbol has {len(symbols)}.")
        after, log_norms = model.step(symbols, before)
        if not (log_norms > -np.inf).all():
            if state is not None:
                _check_posterior(model.shares(before), state)
            raise FloatingPointError(
                "The symbol has no probability after those before: no state that transitions and "
                "masks allow can emit it."
            )
        log_prob = log_prob + log_norms
        if is_one:
            after, log_prob = after[0], float(log_prob[0])
        if not model.in_logs:
            return FilterState(after, log_prob)
        return FilterState(np.exp(after).astype(model.dtype, copy=False), log_prob, after)

    def sample(
        self,
        n_samples: int = 1,
        *,
        lengths: Array | None = None,
        after: Array | None = None,
        random_state: RandomState = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw one sequence, or several concatenated ones.

        Parameters
        ----------
        n_samples : int, default=1
            Length of the sequence.
        lengths : array-like of int, default=None
            Lengths of several sequences, in place of `n_samples`.
        after : array-like of shape (n_before,) or (n_before, p), default=None
            A sequence that the draws go on from.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        X : ndarray of int of shape (n_samples, 1), or ndarray of shape (n_samples, p)
            Symbols, or rows.
        states : ndarray of int of shape (n_samples,)
            States.
        """
        model, rng, first_shares = self._model, as_generator(random_state), None
        if model.emitter is None:
            _check_known(model, "sample")
        if after is not None:
            self._check_local("after")
            seen, sequences = self._possible(after, None)
            first_shares = seen.transition.passed(seen.last_posterior(sequences[0]))
        if lengths is None:
            wanted, request = [check_integer("n_samples", n_samples)], f"n_samples={n_samples!r}"
        else:
            wanted = check_lengths(np.atleast_1d(lengths)).tolist()
            request = f"lengths that sum to {sum(wanted)}"
        n_bytes = 16 * sum(wanted)
        if not model.is_local:  # whose paths are drawn given all that may follow
            n_bytes += 8 * max(wanted) * len(model.start)
        check_fits(n_bytes, request, "states and symbols")
        symbols, states = model.sample(np.array(wanted), rng, first_shares)
        return symbols[:, None] if model.emitter is None else symbols, states

    def report(
        self, n_states: int = 200, *, random_state: RandomState = None
    ) -> dict[str, np.ndarray]:
        """Return how far transitions and emissions are from those of the exact kernel.

        Parameters
        ----------
        n_states : int, default=200
            Number of states to compare.
        random_state : int, RandomState instance or None, default=None
            Source of the choice of states.

        Returns
        -------
        dict of str to ndarray of shape (n_states,)
            ``"transition"`` and ``"emission"``: total variation distance, in [0, 1], between the
            exact and approximate (locally normalised) distributions given each state.
        """
        model = self._model
        rows = as_generator(random_state).permutation(len(model.start))
        rows = np.sort(rows[: check_integer("n_states", n_states)])
        factors, errors = {"transition": model.transition, "emission": model.emission}, {}
        symbols = model.embeddings["symbols"]
        most = max(len(model.start), 0 if symbols is None else len(symbols))
        check_fits(24 * len(rows) * most, f"n_states={n_states!r}", "their distributions")
        for name, factor in factors.items():
            if factor is None:
                continue
            rows_of, columns = (factor.maps.sigma * model.embeddings[role] for role in factor.roles)
            exact = softmax(rows_of[rows] @ columns.T, axis=1)
            shares = softmax(factor.pair.log_rows(rows), axis=1)
            errors[name] = np.abs(exact - shares).sum(axis=1) / 2
        return errors

    # ---------------------------------------------------------------- learning

    def fit(
        self,
        X: Array,
        lengths: Array | None = None,
        *,
        state_mask: Array | None = None,
        batch_size: int | None = None,
        validation: float | tuple | None = None,
        callback: Callable | None = None,
    ) -> Self:
        """Learn the embeddings by gradient ascent on the exact likelihood of the low-rank model.

        The features are drawn and fitted once, at the given embeddings, and held fixed while the
        embeddings move, so the objective does not change during the fit. Without batches, L-BFGS
        maximises it: afterwards, `score` is its last value, ``history_[-1]``, unless `validation`
        kept an earlier model. Missing symbols are summed out, and with ``normalization="global"``
        the likelihood includes the normaliser for each sequence's length.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.
        state_mask : array-like of bool of shape (n_samples, n_states), default=None
            What is known of the states of some samples: False forbids a state there. Rows are all
            True where nothing is known.
        batch_size : int, default=None
            Number of sequences per batch. Sequences are shuffled for every pass, and every batch
            makes one step of Adam; with many sequences, this takes far fewer passes. None uses all
            sequences at once, with L-BFGS.
        validation : float or tuple (X, lengths), default=None
            Share of the sequences, drawn with `random_state`, or other sequences of symbols. Of a
            single sequence, the end is held out and scored given the rest. They are not trained on;
            the iteration with the highest score on them is kept, and `fit` ends if that score has
            not risen for five iterations.
        callback : callable, default=None
            Called with a fitted copy of this model after every iteration; `fit` ends if it returns
            True.

        Returns
        -------
        self : object
            The fitted model.

        Raises
        ------
        NotImplementedError
            For feature maps whose gradients are not known (discrete ones).

        Warns
        -----
        ConvergenceWarning
            If the best start did not converge: it reached `max_iter`, its line search failed, or
            a gradient was not finite.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf.graphical import KernelHMM
        >>> truth = KernelHMM.from_random(5, 8, scale=1.0, random_state=0)
        >>> X, _ = truth.sample(600, random_state=0)
        >>> model = KernelHMM.from_random(20, 8, weight_decay=0.1, max_iter=5, random_state=1)
        >>> model = model.fit(X, [20] * 30, batch_size=6, validation=0.2)
        >>> len(model.history_), model.validation_history_[-1] > model.validation_history_[0]
        (5, True)
        """
        limits, batches, n_init = self._limits(), None, self.n_init
        if n_init is None:
            n_init = "screened" if isinstance(self.states, Integral) else 1
        n_init = n_init if n_init == "screened" else check_integer("n_init", n_init)
        if batch_size is not None:
            batches = {"batch_size": check_integer("batch_size", batch_size)}
            batches |= {name: getattr(self, name) for name in ("learning_rate", "weight_decay")}
        elif self.weight_decay:
            raise ValueError(
                f"weight_decay={self.weight_decay!r} needs batch_size: without batches nothing "
                "takes it into account."
            )
        draft, rng = self._draft(), as_generator(draw_seed(self.random_state))
        if self.warm_start and self._fitted is not None:
            initial, redraw, n_init = self._fitted, None, 1 if n_init == "screened" else n_init
        else:
            initial, redraw = draft._initial(X, rng)
        for name, of_few, of_many in (("max_iter", 300, 100), ("tol", 1e-8, 1e-6)):
            if limits[name] is None:
                limits[name] = of_few if initial.has_few else of_many
        validation = _check_validation(validation)
        initial, sequences = _with_sequences(initial, X, lengths, state_mask)
        if isinstance(validation, float):
            sequences, validation = _held_out(sequences, validation, rng)
        elif validation is not None:
            with naming("validation"):
                other, whole = _with_sequences(initial.unobserved, *validation)
            validation = whole, [], other.data
        _check_possible(initial, sequences)

        def call(model):
            return callback(draft_of(self)._take(model.unobserved))

        # All passes together are one call, so that few symbols and many iterations repay numba.
        with rows_of_call(limits["max_iter"] * sum(map(len, sequences))):
            best, scores, *progress = learn(
                initial,
                sequences,
                n_init,
                rng,
                limits,
                batches,
                validation=validation,
                callback=callback and call,
                redraw=redraw,
            )
        if validation is not None:
            draft.validation_history_ = scores
        vars(draft).pop("_adam", None)
        return self._commit(draft._take(best.unobserved), {}, *progress)

    def _initial(self, X, rng):
        """Return the model that `fit` starts from, and what draws other emissions, or None."""
        self._validate_params()
        emitter, redraw, has_states = self._emitter(), None, not isinstance(self.states, Integral)
        embeddings = self._check_embeddings() if has_states else None
        if isinstance(emitter, str):
            n = len(embeddings["states"]) if has_states else check_integer("states", self.states)
            rows = check_rows(X)
            if len(rows) < n:
                raise ValueError(f"X must have a row for each of {n} states, got {len(rows)} rows.")
            redraw = partial(clustered, n, rows, self.covariance_type, rng)
            emitter = redraw()
        if has_states and redraw is None:
            return self._model, None
        if not has_states:
            n_symbols = None
            if emitter is None and self.symbols is None:
                n_symbols = _count_symbols(_check_integers(X, "X"))
            embeddings = self._draw_embeddings(n_symbols, rng)
        return self._build(embeddings, emitter), redraw

    def partial_fit(self, X: Array, lengths: Array | None = None) -> Self:
        """Take one step of Adam on some sequences, starting from what was learned before.

        Unlike `fit` it does not lower the learning rate.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None means one sequence.

        Returns
        -------
        self : object
            The model after the step.

        Raises
        ------
        FloatingPointError
            If the gradient is not finite; the model stays as it was.
        """
        self._validate_params()
        initial, sequences = self._sequences(X, lengths)
        free = FreeArrays(initial, gradients)
        adam = copy.deepcopy(vars(self).get("_adam"))
        if self._fitted is None or adam is None:
            adam = Adam(free.arrays)
        _, arrays = free.stepped(
            free.arrays, sequences, adam, self.learning_rate, self.weight_decay
        )
        draft = draft_of(self, forget=False)
        draft._adam = adam
        return commit(self, draft._take(free.model(arrays, initial.dtype).unobserved))

    def _take(self, model):
        """Hold what was learned."""
        self._fitted = model
        for name, value in model.embeddings.items():
            setattr(self, f"{name}_", value)
        return self


class _Shape:
    """Placeholder for an array in the representation of an estimator."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        shape = getattr(self.value, "shape", None)
        return f"<{type(self.value).__name__}{'' if shape is None else f' of shape {shape}'}>"


def _check_integers(symbols, name):
    """Return integers of shape (n,), `ANY` where they are masked or NaN."""
    symbols, is_missing = unmasked(symbols)
    is_apart = isinstance(symbols, (list, tuple)) and len(set(map(np.size, symbols))) > 1
    symbols = symbols if is_apart else as_array(name, symbols)
    shape = np.shape(symbols) if not is_apart else ()
    if is_apart or (len(shape) == 2 and min(shape) > 1):
        raise ValueError(
            f"{name} holds sequences apart, or several symbols per sample"
            f"{'' if is_apart else f', in shape {shape}'}: concatenate sequences and pass their "
            "lengths, as in fit(numpy.concatenate(X), lengths)."
        )
    if symbols.ndim == 2 and symbols.shape[1] == 1:
        symbols = symbols[:, 0]
    is_missing = is_missing.reshape(-1)
    if symbols.ndim == 1 and symbols.dtype.kind == "f":  # as from OrdinalEncoder
        is_missing = is_missing | np.isnan(symbols)
        symbols = np.where(is_missing, 0.0, symbols)
        if (np.abs(symbols) < 2**53).all() and (symbols == np.round(symbols)).all():
            symbols = symbols.astype(int)
    if symbols.ndim != 1 or symbols.size == 0 or symbols.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must hold integers in shape (n_samples, 1) or (n_samples,), got shape {shape} "
            f"of dtype {symbols.dtype}. For other numbers, pass emissions='gaussian'; encode other "
            "symbols with OrdinalEncoder; mark missing ones with NaN or a mask of numpy.ma."
        )
    if symbols.min() < 0:
        raise ValueError(f"{name} has unknown symbols: they must be >= 0, got {symbols.min()}.")
    return np.where(is_missing, ANY, symbols.astype(int)) if is_missing.any() else symbols


def _count_symbols(symbols):
    """Return the largest of some symbols plus 1, or raise if few of the symbols up to it occur."""
    distinct = np.unique(symbols[symbols != ANY])
    n_symbols = int(distinct.max(initial=0)) + 1
    if n_symbols > max(_CODES * len(distinct), _FEW_CODES):
        raise ValueError(
            f"X has {len(distinct)} distinct symbols, of which the largest is {distinct[-1]}: "
            f"encode them as 0 to {len(distinct) - 1}, with OrdinalEncoder or "
            f"numpy.unique(X, return_inverse=True), or pass symbols={n_symbols} if all of these "
            "may occur."
        )
    return n_symbols


def _check_symbols(model, symbols, name="X"):
    """Return symbols that the model knows, `ANY` where they are masked."""
    _check_known(model, name)
    symbols, n_symbols = _check_integers(symbols, name), len(model.embeddings["symbols"])
    if symbols.max() >= n_symbols:
        raise ValueError(
            f"{name} has unknown symbols: known are 0 to {n_symbols - 1}, got values up to "
            f"{symbols.max()}."
        )
    return symbols.astype(int, copy=False)  # small types do not hold the number of symbols


def _check_rows(model, X):
    """Return rows that the model's emissions take."""
    if isinstance(model.emitter, PrecomputedEmissions):
        return check_log_likelihoods(X, len(model.start))
    is_normal = isinstance(model.emitter, GaussianEmissions)
    return check_rows(X, model.emitter.means.shape[1] if is_normal else None)


def _with_sequences(model, X, lengths, state_mask=None):
    """Return a model for what was observed, and sequences of symbols, or of positions."""
    data = _check_symbols(model, X) if model.emitter is None else _check_rows(model, X)
    if model.emitter is None and state_mask is None:
        return model, split(data, lengths)
    if state_mask is not None:
        state_mask = _check_mask("state_mask", state_mask, (len(data), len(model.start)))
        if not model.is_local:
            raise ValueError("state_mask needs normalization='local', got 'global'.")
    return model.observing(data, state_mask), split(np.arange(len(data)), lengths)


def _check_mask(name, mask, shape):
    """Return an array of True and False."""
    mask = as_array(name, mask)
    if mask.dtype != bool or mask.shape != shape:
        raise ValueError(
            f"{name} must hold True or False in shape {shape}, got shape {mask.shape} of dtype "
            f"{mask.dtype}."
        )
    return mask


def _check_known(model, what):
    if model.emission is None:
        raise ValueError(
            f"{what} needs symbols, which are None: pass their embeddings, or other emissions."
        )


def _check_validation(validation):
    """Return a share of the sequences, or samples and lengths, or None."""
    if validation is None:
        return None
    if isinstance(validation, Real) and not isinstance(validation, bool) and 0 < validation < 1:
        return float(validation)
    if isinstance(validation, tuple) and len(validation) == 2:
        return validation
    raise ValueError(
        "validation must be a share of the sequences, between 0 and 1, or a tuple (X, lengths), "
        f"got {validation!r}."
    )


def _held_out(sequences, share, rng):
    """Return most of the sequences, and others to score given what comes before them."""
    if len(sequences) < 2:  # the end, given the rest
        whole = sequences[0]
        cut = len(whole) - max(1, round(share * len(whole)))
        if cut < 1:
            raise ValueError(f"validation={share!r} needs two samples or more.")
        return [whole[:cut]], ([whole], [whole[:cut]])
    order = rng.permutation(len(sequences))
    n_held = min(max(1, round(share * len(order))), len(order) - 1)
    held, trained = np.sort(order[:n_held]), np.sort(order[n_held:])
    return [sequences[i] for i in trained], ([sequences[i] for i in held], [])


def _check_possible(model, sequences, log_probs=None):
    """Return a model and sequences, or raise if one of them has no probability.

    Log probabilities may be those of their best paths.
    """
    if model.may_be_impossible:
        is_impossible = (model.log_prob(sequences) if log_probs is None else log_probs) == -np.inf
        if is_impossible.any():
            which = int(np.argmax(is_impossible))
            log_norms = model.log_norms(sequences[which])
            at = sum(map(len, sequences[:which])) + int(np.argmax(log_norms == -np.inf))
            raise ValueError(
                f"X has no probability from sample {at} on: no state that the start, transitions, "
                "masks and the samples before allow can emit it."
            )
    return model, sequences


def _n_free(n, m, width, mask):
    """Return how many probabilities of m successors of n states embeddings can choose freely."""
    rank = min(width, n, m - 1)
    free = rank * (n + m - 1 - rank)
    return free if mask is None else min(free, np.count_nonzero(mask) - mask.size // m)


def _check_shares(shape, name, values):
    """Return probabilities that sum to 1 in every row."""
    shares = as_array(name, values, np.float64)
    if shares.shape != shape or not (shares >= 0).all() or not np.allclose(shares.sum(axis=-1), 1):
        raise ValueError(
            f"{name} must hold probabilities >= 0 in shape {shape} whose rows sum to 1, got "
            f"{values!r}."
        )
    return shares


def _finite_logs(shares):
    """Return logarithms, with 0 in place of those of zeros, which a mask forbids."""
    return np.log(np.where(shares > 0, shares, 1.0))


def _check_state(model, state):
    """Return the distribution of a `FilterState` as the model takes it, and its log probability."""
    if not isinstance(state, FilterState):
        raise TypeError(f"state must be what filter_step returned, or None, got {state!r}.")
    posterior = np.atleast_2d(as_array("state", state.posterior))
    log_prob = np.atleast_1d(as_array("state", state.log_prob))
    shape = len(posterior), len(model.start)
    logs = posterior if state.log_posterior is None else np.atleast_2d(state.log_posterior)
    is_fit = [posterior.shape, log_prob.shape, logs.shape] == [shape, shape[:1], shape]
    if not is_fit or (posterior.dtype.kind + log_prob.dtype.kind).strip("fiu"):
        raise ValueError(
            f"state must hold a posterior of shape {shape} and {shape[0]} values of log_prob, "
            f"got {state!r}."
        )
    if not model.in_logs:
        return posterior.astype(model.dtype, copy=False), log_prob
    if state.log_posterior is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(posterior)
    return logs, log_prob


def _check_posterior(posterior, state):
    if not ((posterior >= 0).all() and np.allclose(posterior.sum(axis=-1), 1, atol=1e-3)):
        raise ValueError(f"state must hold probabilities that sum to 1, got {state!r}.")


def _decoded(model, sequences, algorithm):
    """Return the states of a path, and a function of its log probability with the symbols."""
    if not (isinstance(algorithm, str) and algorithm in ("posterior", "map", "viterbi")):
        raise ValueError(f"algorithm must be 'posterior', 'map' or 'viterbi', got {algorithm!r}.")
    if algorithm == "viterbi":
        logs, path = model.viterbi(sequences)
        _check_possible(model, sequences, logs)
        return path, lambda: float(logs.sum())
    _check_possible(model, sequences)
    path = model.likeliest(sequences)
    paths = np.split(path, np.cumsum([len(sequence) for sequence in sequences])[:-1])
    return path, lambda: float(sum(map(model.log_joint, sequences, paths)))
