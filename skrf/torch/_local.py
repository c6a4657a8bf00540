"""Blocks of local attention with a backward pass that computes their weights again."""

import torch

from ..attention.local import blocks as plain
from ..attention.local.blocks import Far, read, terms_of
from ._causal import in_full_precision


def attend(q, rows, is_key, blocks, far, is_causal):
    """Return the outputs of blocks; see `skrf.attention.local.blocks.attend`."""
    numbers, tensors = None, (None, None, None)
    if far is not None:
        numbers, tensors = far.numbers, (far.pool, far.summaries, far.bias)
    needs_gradient = any(x is not None and x.requires_grad for x in (q, rows, *tensors))
    if not (torch.is_grad_enabled() and needs_gradient):
        return plain.attend(q, rows, is_key, blocks, far, is_causal)
    return _Blocks.apply(q, rows, *tensors, is_key, blocks, numbers, is_causal)


class _Blocks(torch.autograd.Function):
    """Attention of blocks of queries, which holds no weights between its passes."""

    @staticmethod
    def forward(ctx, q, rows, pool, summaries, bias, is_key, blocks, numbers, is_causal):
        far = None if pool is None else Far(pool, numbers, summaries, bias)
        outs, logs = [], []
        for block in blocks:
            terms = terms_of(q, rows, is_key, block, far, is_causal)
            sums, total, top = read(terms, is_key is not None)
            outs.append(sums / total)
            logs.append(total.log() + top)
        out, logs = torch.cat(outs, dim=-2), torch.cat(logs, dim=-2)
        ctx.save_for_backward(q, rows, pool, summaries, bias, is_key, out, logs)
        ctx.blocks, ctx.numbers, ctx.is_causal = blocks, numbers, is_causal
        return out

    @staticmethod
    @in_full_precision
    def backward(ctx, by_out):
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "Second derivatives (create_graph=True) of LocalAttention are not available."
            )
        q, rows, pool, summaries, bias, is_key, out, logs = ctx.saved_tensors
        far = None if pool is None else Far(pool, ctx.numbers, summaries, bias)
        by_q, by_rows = torch.zeros_like(q), torch.zeros_like(rows)
        by_far = (None, None, None)
        if far is not None:
            by_far = tuple(
                None if tensor is None else torch.zeros_like(tensor)
                for tensor in (pool, summaries, bias)
            )
        # The part of every derivative by a logarithm that all keys of a query share.
        shared = (by_out * out).sum(dim=-1, keepdim=True)
        first = ctx.blocks[0].queries.start
        for block in ctx.blocks:
            here = slice(block.queries.start - first, block.queries.stop - first)
            of_query = q[..., block.queries, :]
            gradients = []
            for part in terms_of(q, rows, is_key, block, far, ctx.is_causal):
                weights = part.logs.sub_(logs[..., here, :]).exp_()
                by_logs = plain.matmul(by_out[..., here, :], part.values.mT)
                by_logs = by_logs.sub_(shared[..., here, :]).mul_(weights)
                by_q[..., block.queries, :] += plain.matmul(by_logs, part.keys)
                keys, values = (
                    _transposed_product(left, right, part.keys.ndim)
                    for left, right in ((by_logs, of_query), (weights, by_out[..., here, :]))
                )
                gradients.append((torch.cat([keys, values], dim=-1), by_logs))
            by_rows[:, block.near] += gradients[0][0]
            if block.far is not None:
                by_beyond, by_logs = gradients[1]
                by_far[2][:, :, block.far] = by_logs.sum(dim=-2)
                if ctx.numbers is None:
                    by_far[0][:, :, block.far] = by_beyond
                    continue
                numbers = ctx.numbers[:, :, block.far]
                heavy, others = by_beyond.split([numbers.shape[-1], summaries.shape[3]], dim=-2)
                numbers = torch.from_numpy(numbers.ravel()).to(q.device)
                by_far[0].index_add_(0, numbers, heavy.flatten(0, 2))
                by_far[1][:, :, block.far] = others
        return by_q, by_rows, *by_far, None, None, None, None


def _transposed_product(left, right, n_axes):
    """Return left (U, G, n, m) transposed times right (U, G, n, w), over all heads for 3 axes."""
    if n_axes == 3:
        left, right = left.flatten(1, 2), right.flatten(1, 2)
    return left.mT @ right
