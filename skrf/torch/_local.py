"""Blocks of local attention with a backward pass that computes their weights again."""

import torch

from ..attention.local import blocks as plain
from ..attention.local.blocks import Far, read, terms_of, together
from ._causal import in_full_precision


def attend(q, rows, blocks, far, is_causal):
    """Return the outputs of blocks with log-sum-exps; see `skrf.attention.local.blocks.attend`."""
    numbers, tensors = None, (None, None, None)
    if far is not None:
        numbers, tensors = far.numbers, (far.pool, far.summaries, far.bias)
    needs_gradient = any(x is not None and x.requires_grad for x in (q, rows, *tensors))
    if not (torch.is_grad_enabled() and needs_gradient):
        return plain.attend(q, rows, blocks, far, is_causal)
    return _Blocks.apply(q, rows, *tensors, blocks, numbers, is_causal)


class _Blocks(torch.autograd.Function):
    """Attention of blocks of queries, which holds no weights between its passes."""

    @staticmethod
    def forward(ctx, q, rows, pool, summaries, bias, blocks, numbers, is_causal):
        far = None if pool is None else Far(pool, numbers, summaries, bias)
        outs, blocks = [], together(q, blocks)
        for block in blocks:
            sums, total, top = read(terms_of(q, rows, block, far, is_causal))
            outs.append(block.joined(torch.cat([sums / total, total.log() + top], dim=-1)))
        out = torch.cat(outs, dim=-2)
        ctx.save_for_backward(q, rows, pool, summaries, bias, out)
        ctx.blocks, ctx.numbers, ctx.is_causal = blocks, numbers, is_causal
        return out

    @staticmethod
    @in_full_precision
    def backward(ctx, by_out):
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "Second derivatives (create_graph=True) of LocalAttention are not available."
            )
        q, rows, pool, summaries, bias, out = ctx.saved_tensors
        width = out.shape[-1] - 1
        (out, logs), (by_out, by_logs) = (both.split([width, 1], dim=-1) for both in (out, by_out))
        far = None if pool is None else Far(pool, ctx.numbers, summaries, bias)
        by_q, by_rows = torch.zeros_like(q), torch.zeros_like(rows)
        by_far = (None, None, None)
        if far is not None:
            by_far = tuple(
                None if tensor is None else torch.zeros_like(tensor)
                for tensor in (pool, summaries, bias)
            )
        # The part of every derivative by a logarithm that all keys of a query share.
        shared = (by_out * out).sum(dim=-1, keepdim=True) - by_logs
        first = ctx.blocks[0].queries.start
        for block in ctx.blocks:
            here = slice(block.queries.start - first, block.queries.stop - first)
            here = block._replace(queries=here)
            by_own, own_shared, own_logs = map(here.split, (by_out, shared, logs))
            of_query, gradients = block.split(q), []
            for part in terms_of(q, rows, block, far, ctx.is_causal):
                weights = part.logs.sub_(own_logs).exp_()
                by_logs = plain.matmul(by_own, part.values.mT).sub_(own_shared).mul_(weights)
                by_q[..., block.queries, :] += block.joined(plain.matmul(by_logs, part.keys))
                keys, values = (
                    _transposed_product(left, right, part.keys.ndim)
                    for left, right in ((by_logs, of_query), (weights, by_own))
                )
                gradients.append((torch.cat([keys, values], dim=-1), by_logs))
            _add_windows(by_rows[:, block.near], block, gradients[0][0])
            if block.far is not None:
                by_beyond, by_logs = gradients[1]
                by_far[2][:, :, block.all_far] = block.apart(by_logs.sum(dim=-2))
                by_beyond = block.apart(by_beyond)
                if ctx.numbers is None:
                    by_far[0][:, :, block.all_far] = by_beyond
                    continue
                numbers = ctx.numbers[:, :, block.all_far]
                heavy, others = by_beyond.split([numbers.shape[-1], summaries.shape[3]], dim=-2)
                numbers = torch.from_numpy(numbers.ravel()).to(q.device)
                by_far[0].index_add_(0, numbers, heavy.flatten(0, 3))
                by_far[1][:, :, block.all_far] = others
        return by_q, by_rows, *by_far, None, None, None


def _add_windows(rows, block, parts):
    """Add what belongs to the windows of blocks to rows (U, n, w), of which they are views.

    Windows overlap, and their parts of the length of a block do not: the order is fixed.
    """
    if block.count == 1:
        rows += parts
        return
    parts = parts.unflatten(0, (-1, block.count))
    for start in range(0, block.n_near, block.length):
        part = parts[:, :, start : start + block.length].mT
        n = part.shape[-1]
        stop = start + (block.count - 1) * block.length + n
        rows[:, start:stop].unfold(1, n, block.length).add_(part)


def _transposed_product(left, right, n_axes):
    """Return left (U, G, n, m) transposed times right (U, G, n, w), over all heads for 3 axes."""
    if n_axes == 3:
        left, right = left.flatten(1, 2), right.flatten(1, 2)
    return left.mT @ right
