"""Losses over long sequences in memory that does not grow: chunk by chunk, in both directions."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn

from .._validation import check_integer
from ._attention import Attention


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
    given = [modules] if isinstance(modules, nn.Module) else modules
    modules = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(module, nn.Module) for module in modules):
        raise TypeError(f"modules must be a module or a list of modules, got {given!r:.60}.")
    attentions = _attentions(modules)
    chunks = [slice(i, min(i + chunk_size, length)) for i in range(0, length, chunk_size)]
    run = _Chunks(loss_of, chunks, n_states, attentions, modules)
    return _ChunkedLoss.apply(run, *run.parameters)


def _attentions(modules):
    """Return the attention modules, all of which must be causal."""
    found = {}
    for module in modules:
        found.update((part, None) for part in module.modules() if isinstance(part, Attention))
    if not found:
        raise ValueError("modules must hold a causal RandomFeatureAttention, got none.")
    for attention in found:
        if not attention.is_causal:
            raise ValueError(f"modules hold {attention!r}: chunks need is_causal=True.")
        if not attention._mask_streams:
            raise ValueError(
                f"modules hold attention with mask={type(attention.mask).__name__}: chunks need "
                "mask=None or ToeplitzMask.decay(rate), because a state knows no positions."
            )
    return list(found)


def _parameters(modules):
    """Return the parameters that get gradients."""
    found = {p: None for module in modules for p in module.parameters() if p.requires_grad}
    for parameter in found:
        if parameter._backward_hooks:
            raise RuntimeError(
                "A parameter of modules has a tensor hook (register_hook), which would see the "
                "gradients of single chunks. Use register_post_accumulate_grad_hook."
            )
    return list(found)


class Stream:
    """The states of attention modules around one chunk.

    Parameters
    ----------
    before : dict of Attention to state
        States before the chunk, none before the first one.
    seeds : dict of Attention to int
        Seeds of the random numbers of the whole loss.
    has_graph : bool
        Whether gradients must flow through the states.
    """

    def __init__(self, before, seeds, has_graph):
        self.before, self.seeds, self.has_graph = before, seeds, has_graph
        self.after, self.is_open = dict(before), False
        self._called, self._needs_double = set(), {}

    @contextmanager
    def carried(self):
        """Let the modules read and write the states."""
        try:
            for attention in self.seeds:
                attention._stream = self
            yield
        finally:
            for attention in self.seeds:
                attention._stream = None

    def states_after(self):
        """Return the constant states after the chunk, in float32 where the inputs are."""
        states = {}
        for one, state in self.after.items():
            state = state.detach()
            sums = getattr(state, "sums", None)  # of features
            if sums is not None and not (state.is_double or self._needs_double.get(one, True)):
                state = replace(state, sums=sums.float())
            states[one] = state
        return states

    @torch.compiler.disable
    def attend(self, attention, step, *parts):
        """Return the output of a module, by its step, for the positions of the chunk.

        While the stream is open for the backward pass, activation checkpointing calls again.
        """
        is_again = attention in self._called
        if is_again and not self.is_open:
            raise RuntimeError(
                f"loss_of called {attention!r} twice in a chunk, so that its state is not known: "
                "call every module once, on all positions of the chunk."
            )
        if self.has_graph and not torch.is_grad_enabled():
            raise RuntimeError(
                "Attention within chunks was called without gradients: checkpoint with "
                "use_reentrant=False, and leave out torch.no_grad()."
            )
        self._called.add(attention)
        self._needs_double[attention] = parts[0].dtype == torch.float64
        state = self.before.get(attention, attention._state_type())
        *found, state = step(*parts, state, self.seeds[attention])
        if not is_again:
            self.after[attention] = state
        return tuple(found) if len(found) > 1 else found[0]


class _Chunks:
    """The chunks of one loss, which run with the same states, seeds and settings each time.

    Parameters
    ----------
    loss_of : callable
        Returns the loss of a slice of positions.
    chunks : list of slice
        The chunks.
    n_states : int
        States that are kept.
    attentions : list of Attention
        The modules that carry states.
    modules : list of Module
        What has the parameters that get gradients.
    """

    def __init__(self, loss_of, chunks, n_states, attentions, modules):
        self.loss_of, self.chunks, self.modules = loss_of, chunks, modules
        self.parameters = _parameters(self.modules)
        self.has_graph = torch.is_grad_enabled() and bool(self.parameters)
        self.stride = _stride(len(chunks), n_states)
        # The seed of every chunk follows from this number; the state of a generator takes 5 kB.
        self.seed = torch.randint(2**62, (), device="cpu").item()
        self.seeds = {attention: attention._seed_of_call() for attention in attentions}
        devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        self.autocast = {
            device: (torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in devices
        }
        self.kept, self.losses = {}, []

    def forward(self):
        """Return the loss, and keep some states."""
        states = {}
        for number in range(len(self.chunks)):
            if number % self.stride == 0:
                self.kept[number] = states
            loss, stream, states = self._run(number, states)
            self.losses.append(loss.detach())
            del loss, stream  # and with them their graph, before there is another
        losses = torch.stack(self.losses)
        return _in_single(losses).sum().to(losses.dtype)

    def backward(self, by_loss):
        """Return the gradients of the parameters."""
        if [*map(id, _parameters(self.modules))] != [*map(id, self.parameters)]:
            raise RuntimeError(
                "The parameters of modules that need a gradient are not those of the forward pass: "
                "freeze and functional_call before chunked_loss, and call backward within."
            )
        gradients, by_states = [None] * len(self.parameters), {}
        for start in sorted(self.kept, reverse=True):
            for number, states in reversed(self._states_from(start)):
                found, by_states = self._gradients(number, states, by_states, by_loss)
                for i, gradient in enumerate(found):
                    if gradient is not None:
                        before, gradient = gradients[i], _in_single(gradient)
                        gradients[i] = gradient if before is None else before + gradient
        return [
            gradient if gradient is None else gradient.to(parameter.dtype)
            for gradient, parameter in zip(gradients, self.parameters, strict=True)
        ]

    def _run(self, number, states):
        """Return the loss of a chunk, its `Stream` and the states after it.

        It runs with gradients if they are wanted at all, because torch may compute in another order
        without.
        """
        before = {one: state.detach() for one, state in states.items()}
        for tensor in _carriers(before).values():
            tensor.requires_grad_(self.has_graph)
        stream = Stream(before, self.seeds, self.has_graph)
        with (
            self._settings(number),
            stream.carried(),
            torch.set_grad_enabled(self.has_graph),
        ):
            loss = self._loss(number)
        _check_leaves(loss, [*self.parameters, *_carriers(before).values()])
        return loss, stream, stream.states_after()

    def _states_from(self, start):
        """Return the numbers of the chunks from one kept state to the next, and their states."""
        found = [(start, self.kept[start])]
        for number in range(start, min(start + self.stride, len(self.chunks)) - 1):
            found.append((number + 1, self._run(number, found[-1][1])[2]))
        return found

    def _gradients(self, number, states, by_after, by_loss):
        """Return the gradients of the parameters, and of the states before a chunk.

        Parameters
        ----------
        number : int
            The chunk.
        states : dict of Attention to state
            Before it.
        by_after : dict of (Attention, str) to Tensor
            Gradients of the tensors of the states after it.
        by_loss : Tensor
            Gradient of its loss.
        """
        loss, stream, _ = self._run(number, states)
        known, leaves = self.losses[number], _carriers(stream.before)
        if not torch.allclose(loss.detach(), known, rtol=0, atol=0, equal_nan=True):
            raise RuntimeError(
                f"The loss of {self.chunks[number]} was {known.item()!r} and is {loss.item()!r} "
                "when computed again: loss_of must depend on the positions, the modules and the "
                "random numbers of torch's default generators alone."
            )
        with stream.carried():
            pairs = [(loss, by_loss.to(loss.dtype))]
            after = _carriers(stream.after)
            pairs += [(after[place], gradient) for place, gradient in by_after.items()]
            pairs = [pair for pair in pairs if pair[0].requires_grad and pair[1] is not None]
            if not pairs:
                return [], {}
            stream.is_open = True
            outputs, by_outputs = zip(*pairs, strict=True)
            found = torch.autograd.grad(
                outputs, [*self.parameters, *leaves.values()], by_outputs, allow_unused=True
            )
        n = len(self.parameters)
        return found[:n], dict(zip(leaves, found[n:], strict=True))

    def _loss(self, number):
        loss = self.loss_of(self.chunks[number])
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise TypeError(f"loss_of must return a Tensor without axes, got {loss!r:.60}.")
        return loss

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


def _carriers(states):
    """Return the tensors of states that gradients flow through, by module and name."""
    return {
        (one, name): tensor
        for one, state in states.items()
        for name, tensor in state.carriers().items()
    }


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
    known, waiting, seen = set(leaves), [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf not in known:
            raise RuntimeError(
                f"loss_of uses a tensor of shape {tuple(leaf.shape)} that needs a gradient and is "
                "no parameter of modules: pass its module in modules, or detach it."
            )
        waiting += [following for following, _ in node.next_functions]


class _ChunkedLoss(torch.autograd.Function):
    """The loss of `_Chunks` as a function of the parameters."""

    @staticmethod
    def forward(ctx, chunks, *parameters):
        ctx.chunks = chunks
        return chunks.forward()

    @staticmethod
    def backward(ctx, by_loss):
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "Second derivatives (create_graph=True) of chunked_loss are not available."
            )
        return None, *ctx.chunks.backward(by_loss)
