"""Losses over long sequences in memory that does not grow: chunk by chunk, in both directions."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn

from .._validation import check_integer
from ._masks import is_stream_mask
from .module import RandomFeatureAttention
from .states import StreamState


def chunked_loss(
    loss_of: Callable[[slice], torch.Tensor],
    length: int,
    *,
    chunk_size: int = 256,
    n_states: int = 64,
    modules: "nn.Module | Iterable[nn.Module]",
) -> torch.Tensor:
    """Return the loss of a sequence, with gradients that are computed chunk by chunk.

    The loss and its gradients are those of the whole sequence, but activations are held for only
    one chunk at a time. Causal `RandomFeatureAttention` modules carry a state from chunk to
    chunk. The backward pass goes through the chunks from last to first and recomputes
    each of them.

    Parameters
    ----------
    loss_of : callable
        Takes a slice and returns the summed loss of its positions, a scalar Tensor. In the model
        that it calls, everything except causal attention must act on single positions.
    length : int
        Number of positions.
    chunk_size : int, default=256
        Number of positions in a chunk.
    n_states : int, default=64
        Number of states that are kept at a time, or more if so few are not enough; if there are
        more chunks, the other states are recomputed.
    modules : Module or iterable of Module
        The modules that `loss_of` calls. No parameter outside them may require a gradient.

    Returns
    -------
    Tensor
        The sum of the losses of all chunks. Optimisers, loss scaling and accumulation work as with
        any loss, and so does DistributedDataParallel around a module whose ``forward`` returns it.

    Raises
    ------
    RuntimeError
        If a tensor outside `modules` requires a gradient, a parameter has a hook, attention is
        called twice in a chunk, or a chunk has a different loss when it is recomputed.
    TypeError
        If `loss_of` is not a function or does not return a scalar, or `modules` are not modules.
    ValueError
        If `modules` contain no causal attention, or attention that is bidirectional or has a mask
        other than a decay.

    See Also
    --------
    RandomFeatureAttention.step : One chunk at a time, by hand.
    torch.utils.checkpoint.checkpoint : Less memory per layer, still proportional to the length.

    Notes
    -----
    Torch's random numbers, such as those of dropout, come from one seed per chunk; other sources of
    random numbers raise an error. Second derivatives are not available.

    References
    ----------
    Likhosherstov et al., Sub-linear memory: how to make Performers slim (2021).

    Examples
    --------
    >>> import torch
    >>> from skrf.torch import RandomFeatureAttention, chunked_loss
    >>> rows = torch.randn(1, 1, 600, 8, generator=torch.Generator().manual_seed(0))
    >>> attend = RandomFeatureAttention(is_causal=True, random_state=0)
    >>> mix = torch.nn.Linear(8, 8)
    >>> def loss_of(part):
    ...     x = mix(rows[:, :, part])
    ...     return attend(x, x, x).square().sum()
    >>> loss = chunked_loss(loss_of, 600, chunk_size=100, modules=[mix, attend])
    >>> loss.backward()
    >>> torch.allclose(loss, loss_of(slice(None)))
    True
    """
    if not callable(loss_of):
        raise TypeError(f"loss_of must be a function of a slice, got {loss_of!r:.60}.")
    length = check_integer("length", length)
    chunk_size = check_integer("chunk_size", chunk_size)
    n_states = check_integer("n_states", n_states)
    roots = [modules] if isinstance(modules, nn.Module) else modules
    roots = list(roots) if isinstance(roots, Iterable) else [roots]
    if not all(isinstance(root, nn.Module) for root in roots):
        raise TypeError(f"modules must be a module or a list of modules, got {modules!r:.60}.")
    chunks = [slice(i, min(i + chunk_size, length)) for i in range(0, length, chunk_size)]
    run = _Run(loss_of, chunks, n_states, _causal_attentions(roots), _parameters(roots))
    return _ChunkedLoss.apply(run, *run.parameters)


def _causal_attentions(roots):
    """Return the attention modules, or raise unless all of them can carry a state."""
    modules = (module for root in roots for module in root.modules())
    attentions = dict.fromkeys(m for m in modules if isinstance(m, RandomFeatureAttention))
    if not attentions:
        raise ValueError("modules must hold a causal RandomFeatureAttention, got none.")
    for attention in attentions:
        if not attention.is_causal:
            raise ValueError(f"modules hold {attention!r}: chunks need is_causal=True.")
        if not is_stream_mask(attention.mask):
            raise ValueError(
                f"modules hold attention with mask={type(attention.mask).__name__}: chunks need "
                "mask=None or ToeplitzMask.decay(rate), because a state knows no positions."
            )
    return list(attentions)


def _parameters(roots):
    """Return the parameters that get gradients."""
    parameters = (parameter for root in roots for parameter in root.parameters())
    parameters = dict.fromkeys(p for p in parameters if p.requires_grad)
    for parameter in parameters:
        if parameter._backward_hooks:
            raise RuntimeError(
                "A parameter of modules has a tensor hook (register_hook), which would see the "
                "gradients of single chunks. Use register_post_accumulate_grad_hook."
            )
    return list(parameters)


class ChunkStates:
    """The states of attention modules before and after one chunk, which the modules read and write.

    Parameters
    ----------
    before : dict of RandomFeatureAttention to StreamState
        States before the chunk, none before the first one.
    has_graph : bool
        Whether gradients must flow through the states.
    """

    def __init__(self, before, has_graph):
        self.before, self.after, self.has_graph = before, {}, has_graph
        self.is_repeated = False  # by activation checkpointing, in the backward pass

    def attend(self, attention, inputs, **options):
        """Return what a module returns for the positions of the chunk."""
        if attention in self.after and not self.is_repeated:
            raise RuntimeError(
                f"loss_of called {attention!r} twice in a chunk, so that its state is not known: "
                "call every module once, on all positions of the chunk."
            )
        if self.has_graph and not torch.is_grad_enabled():
            raise RuntimeError(
                "Attention within chunks was called without gradients: checkpoint with "
                "use_reentrant=False, and leave out torch.no_grad()."
            )
        state = self.before.get(attention, StreamState())
        *results, state = attention._attend(inputs, True, state=state, **options)
        if not (state.is_double or inputs[0].dtype == torch.float64):
            state = replace(state, sums=state.sums.float())  # half of the memory
        if not self.is_repeated:
            self.after[attention] = state
        return tuple(results) if len(results) > 1 else results[0]


class _Run:
    """The chunks of one loss, which run with the same states, seeds and settings each time.

    Parameters
    ----------
    loss_of : callable
        Returns the loss of a slice of positions.
    chunks : list of slice
        The chunks.
    n_states : int
        States that are kept.
    attentions : list of RandomFeatureAttention
        The modules that carry states.
    parameters : list of Parameter
        What gets gradients.
    """

    def __init__(self, loss_of, chunks, n_states, attentions, parameters):
        self.loss_of, self.chunks = loss_of, chunks
        self.attentions, self.parameters = attentions, parameters
        self.has_graph = torch.is_grad_enabled() and bool(parameters)
        self.stride = _stride(len(chunks), n_states)
        # The seed of every chunk follows from this number; the state of a generator takes 5 kB.
        self.seed = torch.randint(2**62, (), device="cpu").item()
        devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        self.autocast = {
            device: (torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in devices
        }
        self.kept_states, self.losses = {}, []

    def forward(self):
        """Return the loss, and keep some states."""
        states = {}
        for number in range(len(self.chunks)):
            if number % self.stride == 0:
                self.kept_states[number] = states
            loss, states = self._constant_chunk(number, states)
            self.losses.append(loss)
        losses = torch.stack(self.losses)
        return _in_single(losses).sum().to(losses.dtype)

    def backward(self, by_loss):
        """Return the gradients of the parameters."""
        if not all(parameter.requires_grad for parameter in self.parameters):
            raise RuntimeError(
                "The parameters of modules that need a gradient are not those of the forward pass: "
                "freeze and functional_call before chunked_loss, and call backward within."
            )
        sums, by_states = [None] * len(self.parameters), {}
        for start in sorted(self.kept_states, reverse=True):
            states = [self.kept_states[start]]
            for number in range(start, min(start + self.stride, len(self.chunks)) - 1):
                states.append(self._constant_chunk(number, states[-1])[1])
            for number in reversed(range(start, start + len(states))):
                gradients, by_states = self._gradients(number, states.pop(), by_states, by_loss)
                for i, gradient in enumerate(gradients):
                    if gradient is not None:
                        gradient = _in_single(gradient)
                        sums[i] = gradient if sums[i] is None else sums[i] + gradient
        return [
            total if total is None else total.to(parameter.dtype)
            for total, parameter in zip(sums, self.parameters, strict=True)
        ]

    def _constant_chunk(self, number, states):
        """Return the loss of a chunk and the states after it, without their graph."""
        loss, stream = self._chunk(number, states)
        return loss.detach(), {key: state.detach() for key, state in stream.after.items()}

    def _chunk(self, number, states):
        """Return the loss of a chunk and its `ChunkStates`.

        It runs with gradients if they are wanted at all, because torch may compute in another order
        without.
        """
        before = {attention: state.detach() for attention, state in states.items()}
        for state in before.values():
            state.sums.requires_grad_(self.has_graph)
        stream = ChunkStates(before, self.has_graph)
        with self._settings(number), self._carried(stream), torch.set_grad_enabled(self.has_graph):
            loss = self.loss_of(self.chunks[number])
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise TypeError(f"loss_of must return a Tensor without axes, got {loss!r:.60}.")
        _check_leaves(loss, [*self.parameters, *_sums(before).values()])
        return loss, stream

    def _gradients(self, number, states, by_after, by_loss):
        """Return the gradients of the parameters, and of the sums of the states before a chunk.

        Parameters
        ----------
        number : int
            The chunk.
        states : dict of RandomFeatureAttention to StreamState
            Before it.
        by_after : dict of RandomFeatureAttention to Tensor
            Gradients of the sums of the states after it.
        by_loss : Tensor
            Gradient of its loss.
        """
        loss, stream = self._chunk(number, states)
        before = self.losses[number]
        if not torch.allclose(loss.detach(), before, rtol=0, atol=0, equal_nan=True):
            raise RuntimeError(
                f"The loss of {self.chunks[number]} was {before.item()!r} and is {loss.item()!r} "
                "when computed again: loss_of must depend on the positions, the modules and the "
                "random numbers of torch's default generators alone."
            )
        after, leaves = _sums(stream.after), _sums(stream.before)
        pairs = [(loss, by_loss.to(loss.dtype))]
        pairs += [(after[attention], gradient) for attention, gradient in by_after.items()]
        pairs = [pair for pair in pairs if pair[0].requires_grad and pair[1] is not None]
        if not pairs:
            return [], {}
        outputs, by_outputs = zip(*pairs, strict=True)
        inputs, stream.is_repeated = [*self.parameters, *leaves.values()], True
        with self._carried(stream):
            gradients = torch.autograd.grad(outputs, inputs, by_outputs, allow_unused=True)
        n = len(self.parameters)
        return gradients[:n], dict(zip(leaves, gradients[n:], strict=True))

    @contextmanager
    def _carried(self, stream):
        """Let the modules read and write the states of a chunk."""
        try:
            for attention in self.attentions:
                attention._stream = stream
            yield
        finally:
            for attention in self.attentions:
                attention._stream = None

    @contextmanager
    def _settings(self, number):
        """Set random numbers and autocast as they are whenever a chunk runs."""
        with torch.random.fork_rng(), ExitStack() as stack:
            torch.default_generator.manual_seed(self.seed + number)
            if torch.cuda.is_initialized():  # torch.manual_seed would queue it, with a traceback
                torch.cuda.manual_seed_all(self.seed + number)
            for device, (dtype, is_enabled) in self.autocast.items():
                # Weights that are kept in short floats would belong to another graph.
                stack.enter_context(
                    torch.autocast(device, dtype, enabled=is_enabled, cache_enabled=False)
                )
            yield


def _sums(states):
    """Return the sums of states, through which gradients flow."""
    return {attention: state.sums for attention, state in states.items()}


def _stride(n_chunks, n_states):
    """Return the number of chunks from one kept state to the next.

    The states between two of them are held, too, while their chunks are computed again. If no
    stride needs so few states in all, it is that which needs the fewest.
    """
    strides = range(1, n_chunks + 1)
    needed = [-(-n_chunks // stride) + stride - 1 for stride in strides]
    return next(
        (stride for stride, number in zip(strides, needed, strict=True) if number <= n_states),
        1 + needed.index(min(needed)),
    )


def _in_single(values):
    """Return values in float32 or better, in which many of them may be added."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _check_leaves(loss, leaves):
    """Raise if a loss depends on other leaves that need a gradient than these."""
    leaves, waiting, visited = set(leaves), [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf not in leaves:
            raise RuntimeError(
                f"loss_of uses a tensor of shape {tuple(leaf.shape)} that needs a gradient and is "
                "no parameter of modules: pass its module in modules, or detach it."
            )
        waiting += [following for following, _ in node.next_functions]


class _ChunkedLoss(torch.autograd.Function):
    """The loss of a `_Run` as a function of the parameters."""

    @staticmethod
    def forward(ctx, run, *parameters):
        ctx.run = run
        return run.forward()

    @staticmethod
    def backward(ctx, by_loss):
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "Second derivatives (create_graph=True) of chunked_loss are not available."
            )
        return None, *ctx.run.backward(by_loss)
