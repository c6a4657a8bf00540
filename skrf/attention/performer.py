"""A causal Performer language model, trained in memory that does not grow with the text.

Every operation returns its output and a function that pulls gradients back. With chunks, the
forward pass keeps only some of the attention states between chunks (`_checkpoints`); the reverse
sweep recomputes one chunk at a time from its state and passes the gradients of later queries on to
the previous chunk.
"""

import copy
import math
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator
from scipy.special import log_softmax, ndtr
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._progress import Progress
from .._typing import Array, RandomState, Transformer
from .._validation import check_integer, draw_seed
from ..features import OptimalPositiveRF
from ._backward import Gradients
from ._checkpoints import in_reverse
from ._heads import blocks, for_each_unit
from ._plan import is_none, needs_data, redrawn_sets
from ._shapes import HeadGroups, as_array
from ._stream import arranged
from .generalized import GeneralizedMap
from .masks import ToeplitzMask, as_mask, as_masks
from .near import NearField
from .operator import ApproxKernelAttention

_NORM_EPSILON = 1e-5  # part of layer normalisation: allows constant rows

_INPUTS = "query", "key", "value"


class Performer:
    """A causal language model with linear attention: next-token loss and its gradient.

    Embedding plus sinusoidal positions; layers of multi-head causal attention and a GELU network,
    each with a residual connection and layer normalisation; a linear map to logits.

    Parameters
    ----------
    n_tokens : int
        Size of the vocabulary; tokens are 0 to n_tokens - 1.
    n_layers : int, default=2
        Number of layers.
    width : int, default=64
        Width of the embedding.
    n_heads : int, default=4
        Number of heads, a divisor of `width`.
    n_hidden : int, default=None
        Width of the hidden layer of the GELU network; None is 4 * width.
    feature_map : GeneralizedMap, mechanism or "none", default=None
        The attention's features. None is ``GeneralizedMap(width // n_heads, nonlinearity="elu",
        projection="identity")``, or ``OptimalPositiveRF(64)`` with a near field; "none" is the
        near field alone. Before `fit_features`, mechanisms use the member of their family that
        needs no data; if there is none, call `fit_features` first.
    near : NearField, default=None
        Keys that attention computes exactly; requires a map of the softmax kernel.
    mask : ToeplitzMask, sparse matrix or array-like of shape (n, n), default=None
        Multiplies the attention weights of all layers and heads; only its causal part is used. It
        serves texts of up to n positions; shorter texts use its first positions. The sums of
        attention under a mask cannot be reused at other positions, so `chunk_size` must be None,
        and `generate` processes the whole text again for every token. Not with a near field.
    norm : {"pre", "post"}, default="pre"
        Whether layer normalisation comes before attention and network, or after the sum.
    dtype : {"float64", "float32"}, default="float64"
        Type of the parameters.
    redraw_every : int, default=None
        After this many calls of `loss_and_grad`, the next call first redraws the features, as with
        `redraw`; None keeps the first draw.
    random_state : int, RandomState instance or None, default=None
        Source of the initial parameters and of the features' draws.
    verbose : int, default=0
        With 1, `loss_and_grad` and `loss` print a line per tenth of the chunks.

    Attributes
    ----------
    params : dict of str to ndarray
        The parameters; to train, change them in place or replace them.

    Raises
    ------
    ValueError
        If a parameter is invalid.

    See Also
    --------
    ApproxKernelAttention : Its attention as a single layer.
    skrf.torch.RandomFeatureAttention : Attention for torch models.

    References
    ----------
    Likhosherstov, Choromanski, Davis, Song, Weller: Sub-linear memory (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import Performer
    >>> tokens = np.arange(40) % 5
    >>> model = Performer(5, n_layers=1, width=16, n_heads=2, random_state=0)
    >>> for _ in range(30):
    ...     loss, gradients = model.loss_and_grad(tokens, chunk_size=8)
    ...     for name, gradient in gradients.items():
    ...         model.params[name] -= 0.3 * gradient
    >>> bool(loss < 0.5 * np.log(5))
    True

    Exact attention to near keys, and features for the others:

    >>> from skrf.attention import NearField
    >>> near = NearField(block=8, anchors=2)
    >>> model = Performer(5, n_layers=1, width=16, n_heads=2, near=near, random_state=0)
    >>> whole, in_chunks = (model.loss_and_grad(tokens, chunk_size=n)[0] for n in (None, 7))
    >>> bool(np.isclose(whole, in_chunks))
    True
    """

    def __init__(
        self,
        n_tokens: int,
        *,
        n_layers: int = 2,
        width: int = 64,
        n_heads: int = 4,
        n_hidden: int | None = None,
        feature_map: Transformer | Literal["none"] | None = None,
        near: NearField | None = None,
        mask: Any = None,
        norm: Literal["pre", "post"] = "pre",
        dtype: Literal["float64", "float32"] = "float64",
        redraw_every: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        n_hidden = 4 * width if n_hidden is None else n_hidden
        sizes = {"n_tokens": n_tokens, "n_layers": n_layers, "width": width}
        for name, size in (sizes | {"n_heads": n_heads, "n_hidden": n_hidden}).items():
            check_integer(name, size)
        if width % n_heads:
            raise ValueError(f"n_heads={n_heads} must divide width={width}.")
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}.")
        if dtype not in ("float64", "float32"):
            raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}.")
        self.n_tokens, self.n_layers, self.width, self.n_heads = n_tokens, n_layers, width, n_heads
        if redraw_every is not None:
            check_integer("redraw_every", redraw_every)
        self.norm, self.dtype, self.redraw_every = norm, np.dtype(dtype), redraw_every
        self.verbose = verbose
        if not (near is None or isinstance(near, NearField)):
            raise ValueError(f"near must be a NearField or None, got {near!r}.")
        if near is not None and mask is not None:
            raise ValueError(f"near and mask exclude each other, got near={near!r} and a mask.")
        rng = check_random_state(random_state)
        if feature_map is None:
            elu = GeneralizedMap(nonlinearity="elu", projection="identity")
            feature_map = elu if near is None else OptimalPositiveRF(64)
        if not is_none(feature_map) and feature_map.random_state is None:
            feature_map = clone(feature_map).set_params(random_state=draw_seed(rng))
        self._operator = ApproxKernelAttention(feature_map, causal=True, near=near)
        plan = self._operator._plan(1, 1, width // n_heads)
        self._field, self._sets = plan.field, None
        self._mask = None if mask is None else _sliceable(mask)
        if not any(map(needs_data, plan.prototypes)):
            self._sets = [[plan.maps(plan.prototypes)] * n_heads] * n_layers
        self.params = {
            name: self._initial(name, shape, rng)
            for name, shape in self._shapes(n_tokens, n_layers, width, n_hidden).items()
        }
        self._seeds, self._n_calls = np.random.RandomState(draw_seed(rng)), 0

    @staticmethod
    def _shapes(n_tokens, n_layers, width, n_hidden):
        own = dict.fromkeys(("query", "key", "value", "output"), (width, width))
        own |= {"attention gain": (width,), "attention shift": (width,)}
        own |= {"hidden": (width, n_hidden), "hidden shift": (n_hidden,)}
        own |= {"back": (n_hidden, width), "back shift": (width,)}
        own |= {"network gain": (width,), "network shift": (width,)}
        layers = {f"{i}.{name}": shape for i in range(n_layers) for name, shape in own.items()}
        return {
            "embedding": (n_tokens, width),
            **layers,
            "final gain": (width,),
            "final shift": (width,),
            "logits": (width, n_tokens),
            "logits shift": (n_tokens,),
        }

    def _initial(self, name, shape, rng):
        if name.endswith("gain"):
            return np.ones(shape, self.dtype)
        if name.endswith("shift"):
            return np.zeros(shape, self.dtype)
        scale = 1.0 if name == "embedding" else 1 / math.sqrt(shape[0])
        return (scale * rng.normal(size=shape)).astype(self.dtype)

    # ---------------------------------------------------------------- features

    def fit_features(self, tokens: Array) -> Self:
        """Fit the features of every layer and head to its queries and keys for given texts.

        All methods use them from then on. Layers are fitted one after the other, each on the output
        of the fitted layers before it. If the parameters change afterwards, features stay unbiased
        but fit less and less well.

        Parameters
        ----------
        tokens : array-like of int of shape (L,) or (B, L)
            Texts, all processed at once; a few thousand tokens are enough.

        Returns
        -------
        self : object
            The model.

        Raises
        ------
        ValueError
            If tokens are not integers of the vocabulary, or more than the mask has positions.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf import AdaptiveRF
        >>> from skrf.attention import Performer
        >>> tokens = np.arange(40) % 5
        >>> adaptive = AdaptiveRF(32, asymmetric=True)
        >>> model = Performer(5, width=16, n_heads=2, feature_map=adaptive, random_state=0)
        >>> loss, gradients = model.fit_features(tokens).loss_and_grad(tokens, chunk_size=8)
        >>> bool(np.isfinite(loss))
        True
        """
        tokens = self._check_tokens(tokens)
        self._check_length(tokens.shape[1])
        draft = copy.copy(self)
        draft._sets = []
        x, states = self._embedded(tokens, 0), ()
        for layer in range(self.n_layers):
            inner = x if self.norm == "post" else self._normalised(f"{layer}.attention", x)[0]
            parts = (self._split(self._linear(f"{layer}.{name}", inner)[0]) for name in _INPUTS)
            parts = (part.reshape(len(tokens), self.n_heads, *part.shape[1:]) for part in parts)
            draft._sets.append(_shared(clone(self._operator).fit(*parts)._fitted_sets))
            x = draft._layer(layer, x, states)[0]
        self._sets = draft._sets
        return self

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the features of all layers, keeping parameters and statistics.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the draw; None uses the next one that follows from the model's `random_state`.

        Returns
        -------
        self : object
            The model.

        Raises
        ------
        ValueError
            If features do not exist before `fit_features`.
        """
        sets = [own for layer in self._known_sets() for own in layer]
        seed = draw_seed(self._seeds if random_state is None else random_state)
        drawn = redrawn_sets(sets, lambda *_: seed)
        self._sets = [drawn[heads] for heads in blocks(len(drawn), self.n_heads)]
        return self

    def _known_sets(self):
        """Return the `HeadSet` of every layer and head."""
        if self._sets is None:
            raise ValueError(
                f"feature_map={self._operator.feature_map!r} needs statistics of data: call "
                "fit_features(tokens) first."
            )
        return self._sets

    # ---------------------------------------------------------------- public

    def loss_and_grad(
        self, tokens: Array, chunk_size: int | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Return the mean next-token cross-entropy, in nats, and its gradient.

        Parameters
        ----------
        tokens : array-like of int of shape (L + 1,) or (B, L + 1)
            Texts; position i predicts token i + 1.
        chunk_size : int, default=None
            Positions that pass through all layers at a time. The result is the same to rounding.
            Memory holds the activations of one chunk and 64 attention states, however long the
            texts are. Beyond 64 chunks it takes longer, about 1.3 times as long at 1,000 chunks.
            None processes all positions at once.

        Returns
        -------
        loss : float
            Mean over all predicted tokens.
        gradients : dict of str to ndarray
            Gradients, under the names and in the shapes of `params`.

        Raises
        ------
        ValueError
            If tokens are not integers of the vocabulary, are fewer than two or more than the mask
            has positions, or if there is a mask and `chunk_size` is not None.
        """
        inputs, targets, chunks = self._chunks(tokens, chunk_size)
        if self.redraw_every and self._n_calls and self._n_calls % self.redraw_every == 0:
            self.redraw()

        def advance(i, states):
            return self._hidden(inputs[:, chunks[i]], chunks[i].start, states)[1]

        states = [()] * self.n_layers
        gradients = {name: np.zeros_like(value) for name, value in self.params.items()}
        sweeps, loss = states, 0.0  # the empty states also suit the end: nothing follows it
        progress = Progress(self.verbose, "loss_and_grad")
        for i, before in in_reverse(advance, states, len(chunks)):
            chunk = chunks[i]
            hidden, _, pull_hidden = self._hidden(inputs[:, chunk], chunk.start, before)
            logits, pull_logits = self._linear("logits", hidden)
            chunk_loss, by_logits = _cross_entropy(logits, targets[:, chunk], targets.size)
            loss += chunk_loss
            sweeps = pull_hidden(pull_logits(by_logits, gradients), sweeps, gradients)
            # Otherwise this chunk's activations would be kept while the next one is computed.
            del before, hidden, pull_hidden, logits, pull_logits, by_logits
            progress.count("chunk", len(chunks) - i, len(chunks))
        self._n_calls += 1
        return loss, gradients

    def loss(self, tokens: Array, chunk_size: int | None = None) -> float:
        """Return the mean next-token cross-entropy in nats.

        Parameters
        ----------
        tokens : array-like of int of shape (L + 1,) or (B, L + 1)
            Texts; position i predicts token i + 1.
        chunk_size : int, default=None
            Positions that pass through all layers at a time; None processes all at once.

        Returns
        -------
        float
            Mean over all predicted tokens.
        """
        inputs, targets, chunks = self._chunks(tokens, chunk_size)
        states, loss = [()] * self.n_layers, 0.0
        progress = Progress(self.verbose, "loss")
        for number, chunk in enumerate(chunks, 1):
            hidden, states, _ = self._hidden(inputs[:, chunk], chunk.start, states)
            logits = self._linear("logits", hidden)[0]
            loss += _cross_entropy(logits, targets[:, chunk], targets.size)[0]
            progress.count("chunk", number, len(chunks))
        return loss

    def generate(
        self, prompt: Array, n: int, *, temperature: float = 1.0, random_state: RandomState = None
    ) -> np.ndarray:
        """Return n tokens drawn one after the other, each at the same cost unless there is a mask.

        Parameters
        ----------
        prompt : array-like of int of shape (L,)
            Preceding tokens; at least one.
        n : int
            Number of tokens to draw.
        temperature : float, default=1.0
            Divides the logits.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n,)
            The tokens.
        """
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature!r}.")
        check_integer("n", n, least=0)
        rng, pending = check_random_state(random_state), self._check_tokens(prompt)
        if len(pending) > 1:
            raise ValueError(f"prompt must be one text, of shape (L,), got shape {pending.shape}.")
        self._check_length(pending.shape[1] + n - 1)
        states, position, drawn = [()] * self.n_layers, 0, []
        for _ in range(n):
            hidden, after, _ = self._hidden(pending, position, states)
            logits = self._linear("logits", hidden[:, -1])[0][0].astype(np.float64)
            shares = np.exp(log_softmax(logits / temperature))
            drawn.append(rng.choice(self.n_tokens, p=shares / shares.sum()))
            if self._mask is not None:  # there is no state with a mask
                pending = np.append(pending, [drawn[-1:]], axis=1)
                continue
            states, position, pending = after, position + pending.shape[1], np.array([drawn[-1:]])
        return np.array(drawn, dtype=int)

    # ---------------------------------------------------------------- checks

    def _check_tokens(self, tokens):
        tokens = np.atleast_2d(np.asarray(tokens))
        if tokens.ndim != 2 or tokens.size == 0 or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"tokens must be integers of shape (L + 1,) or (B, L + 1), got shape "
                f"{tokens.shape} and dtype {tokens.dtype}."
            )
        if tokens.min() < 0 or tokens.max() >= self.n_tokens:
            raise ValueError(
                f"tokens must lie in 0 to {self.n_tokens - 1}, got values from {tokens.min()} to "
                f"{tokens.max()}."
            )
        return tokens

    def _chunks(self, tokens, chunk_size):
        tokens = self._check_tokens(tokens)
        length = tokens.shape[1] - 1
        if length < 1:
            raise ValueError("tokens must hold at least two positions: one to predict another.")
        self._check_length(length)
        if self._mask is not None and chunk_size is not None:
            raise ValueError(
                "chunk_size must be None with a mask, which has no state between chunks; got "
                f"{chunk_size!r}."
            )
        size = length if chunk_size is None else check_integer("chunk_size", chunk_size)
        return tokens[:, :-1], tokens[:, 1:], blocks(length, size)

    def _check_length(self, length):
        most = math.inf if self._mask is None else _n_positions(self._mask)
        if length > most:
            raise ValueError(f"mask is for texts of at most {most} positions, got {length}.")

    # ---------------------------------------------------------------- the network

    def _hidden(self, tokens, start, states):
        """Return the final rows of a chunk, the states after it and the function that pulls back.

        That function takes gradients of the rows, the sweeps of later chunks (a list per layer),
        and a dict of gradients to add to; it returns the sweeps of this chunk.
        """
        x, pulls, after = self._embedded(tokens, start), [], []
        for layer in range(self.n_layers):
            x, new_states, pull = self._layer(layer, x, states[layer])
            pulls.append(pull)
            after.append(new_states)
        x, pull_norm = self._normalised("final", x)

        def pull_back(by_x, sweeps, gradients):
            by_x = pull_norm(by_x, gradients)
            before = list(sweeps)
            for layer in reversed(range(self.n_layers)):
                by_x, before[layer] = pulls[layer](by_x, sweeps[layer], gradients)
            np.add.at(gradients["embedding"], tokens, by_x)
            return before

        return x, after, pull_back

    def _embedded(self, tokens, start):
        return self.params["embedding"][tokens] + self._positions(start, tokens.shape[1])

    def _positions(self, start, length):
        rates = 10_000.0 ** (-np.arange(0, self.width, 2) / self.width)
        angles = np.arange(start, start + length)[:, None] * rates
        both = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        return both.reshape(length, -1)[:, : self.width].astype(self.dtype)

    def _layer(self, layer, x, states):
        before, after = self._normalised, _unchanged
        if self.norm == "post":
            before, after = after, before
        inner, pull_inner = before(f"{layer}.attention", x)
        change, states, pull_attention = self._attention(layer, inner, states)
        middle, pull_middle = after(f"{layer}.attention", x + change)
        hidden, pull_hidden = before(f"{layer}.network", middle)
        change, pull_network = self._network(layer, hidden)
        out, pull_out = after(f"{layer}.network", middle + change)

        def pull_back(by_out, sweeps, gradients):
            by_sum = pull_out(by_out, gradients)
            by_sum = by_sum + pull_hidden(pull_network(by_sum, gradients), gradients)
            by_sum = pull_middle(by_sum, gradients)
            by_inner, sweeps = pull_attention(by_sum, sweeps, gradients)
            return by_sum + pull_inner(by_inner, gradients), sweeps

        return out, states, pull_back

    def _attention(self, layer, x, states):
        projected, pulls = zip(
            *(self._linear(f"{layer}.{name}", x) for name in _INPUTS), strict=True
        )
        q, k, v = map(self._split, projected)
        groups = HeadGroups(q[:, None], k, v, None, (len(q), 1), self.dtype)
        sets, masks = self._known_sets()[layer] * len(x), None
        if self._mask is not None:
            masks = as_masks(_first_positions(self._mask, x.shape[1]), groups, causal=True)

        def arrange(heads):
            is_plain = masks is None and self._field is None
            return arranged(heads, groups, sets) if is_plain else (heads, False)

        before, is_joint = arrange(states)
        found = self._operator._attend(groups, sets, masks, before, is_joint=is_joint)
        out, pull_out = self._linear(f"{layer}.output", self._join(found.out, x.shape))

        def pull_back(by_out, sweeps, gradients):
            gradient = self._split(pull_out(by_out, gradients))[:, None]
            by_inputs = [np.empty_like(part) for part in (groups.q, k, v)]
            later, _ = arrange(sweeps)

            def sweep(i, unit, u):
                mask, own = None if masks is None else masks.of(u), slice(None) if is_joint else u
                found = Gradients(unit, [part[own] for part in by_inputs])
                ends = (part[i] if part else None for part in (before, later))
                plan = self._field, mask, None
                return self._operator._sweep(unit, plan, gradient[own], found, *ends)

            _, sweeps = for_each_unit(groups, sets, sweep, is_joint=is_joint)
            by_x = sum(
                pull(self._join(part, x.shape), gradients)
                for pull, part in zip(pulls, by_inputs, strict=True)
            )
            return by_x, sweeps

        return out, found.states, pull_back

    def _split(self, x):
        n_texts, length, _ = x.shape
        heads = x.reshape(n_texts, length, self.n_heads, -1).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(heads).reshape(n_texts * self.n_heads, length, -1)

    def _join(self, heads, shape):
        n_texts, length, _ = shape
        parts = heads.reshape(n_texts, self.n_heads, length, -1).transpose(0, 2, 1, 3)
        return parts.reshape(shape)

    def _network(self, layer, x):
        hidden, pull_hidden = self._linear(f"{layer}.hidden", x)
        share = ndtr(hidden)
        out, pull_out = self._linear(f"{layer}.back", hidden * share)

        def pull_back(by_out, gradients):
            density = np.exp(-(hidden**2) / 2) / math.sqrt(2 * math.pi)
            by_hidden = pull_out(by_out, gradients) * (share + hidden * density)
            return pull_hidden(by_hidden, gradients)

        return out, pull_back

    def _linear(self, name, x):
        """Return x @ matrix (+ shift, if there is one) and the function that pulls back."""
        matrix, shift = self.params[name], self.params.get(f"{name} shift")
        out = x @ matrix if shift is None else x @ matrix + shift

        def pull_back(by_out, gradients):
            flat = by_out.reshape(-1, by_out.shape[-1])
            gradients[name] += x.reshape(-1, x.shape[-1]).T @ flat
            if shift is not None:
                gradients[f"{name} shift"] += flat.sum(axis=0)
            return by_out @ matrix.T

        return out, pull_back

    def _normalised(self, name, x):
        gain, shift = self.params[f"{name} gain"], self.params[f"{name} shift"]
        centred = x - x.mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _NORM_EPSILON)
        unit = centred * inverse

        def pull_back(by_out, gradients):
            axes = tuple(range(x.ndim - 1))
            gradients[f"{name} gain"] += (by_out * unit).sum(axis=axes)
            gradients[f"{name} shift"] += by_out.sum(axis=axes)
            by_unit = by_out * gain
            along = (by_unit * unit).mean(axis=-1, keepdims=True)
            return inverse * (by_unit - by_unit.mean(axis=-1, keepdims=True) - unit * along)

        return unit * gain + shift, pull_back


def _shared(sets):
    """Return a `HeadSet` per head, the same object for heads whose sets are equal."""
    first = {}

    def known(own):
        mechanisms = (id(head.mechanism) for group in own.groups for head in group)
        return first.setdefault((*mechanisms, *np.ravel(own.shrink)), own)

    return [known(own) for own in sets]


def _unchanged(name, x):
    """Return x and its pullback, in place of a layer norm."""
    return x, lambda by_out, gradients: by_out


def _sliceable(mask):
    """Return a mask in a form that `_first_positions` can slice, or raise."""
    if sp.issparse(mask):
        mask = mask.tocsr()
    elif not isinstance(mask, (ToeplitzMask, LinearOperator)):
        mask = as_array("mask", mask)
    n = _n_positions(mask)
    as_mask(mask, n, n, causal=True)
    return mask


def _n_positions(mask):
    return mask.n_positions if isinstance(mask, ToeplitzMask) else max(mask.shape, default=0)


def _first_positions(mask, n):
    """Return the mask of the first n positions."""
    if not isinstance(mask, ToeplitzMask):
        return mask[:n, :n]
    if len(mask.shape) == 1 and n > mask.n_extra:
        return ToeplitzMask(mask.weights, (n - mask.n_extra,), mask.n_extra)
    # The first positions of a grid are not a grid.
    return mask if n == mask.n_positions else mask.toarray()[:n, :n]


def _cross_entropy(logits, targets, count):
    """Return the summed loss over `count` and its gradient with respect to the logits."""
    logs, targets = log_softmax(logits, axis=-1), targets[..., None]
    chosen = np.take_along_axis(logs, targets, axis=-1)
    gradient = np.exp(logs)
    np.put_along_axis(gradient, targets, np.exp(chosen) - 1, axis=-1)
    return float(-chosen.sum(dtype=np.float64) / count), gradient / count
