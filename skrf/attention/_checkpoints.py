"""States of a forward pass in reverse order, of which only a few are kept at a time.

With every state kept, a chunk runs forwards twice (once for its state, once for its gradient) and
backwards once. Here a chunk whose state was dropped runs forwards again from the last kept state.
Keeping s states and running no chunk more than t times suffices for C(s + t, s) chunks
(Griewank: Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation, 1992), and takes t n - C(s + t, s + 1) forward steps for n of them, which is the
minimum.

A chunk's backward step takes 1.7 times its forward step. With 64 states kept, the forward steps for
states are 1.0 per chunk at 64 chunks, 1.9 at 1,024 and 3.2 at 65,536: 1.0, 1.25 and 1.6 times the
time with every state kept. 32 states would take 1.4 times the time at 1,024 chunks, 16
states 1.5 times. Keeping the root of the number of chunks, at 1.27 times, would grow with the text.
"""

from math import comb

KEPT = 64  # states


def in_reverse(advance, state, n, n_kept=KEPT):
    """Yield (i, state before step i) for the steps n - 1 to 0.

    Parameters
    ----------
    advance : callable
        Returns the state after step i, given i and the state before it; it changes no state.
    state : object
        Before step 0.
    n : int
        Number of steps.
    n_kept : int, default=64
        States that are kept at a time, this one included.
    """
    return _in_reverse(advance, state, 0, n, n_kept)


def _in_reverse(advance, state, start, stop, n_kept):
    while stop - start > 1:
        middle = start + _first_part(stop - start, n_kept)
        later = state
        for i in range(start, middle):
            later = advance(i, later)
        yield from _in_reverse(advance, later, middle, stop, n_kept - 1)
        stop = middle
    yield start, state


def _first_part(n, n_kept):
    """Return after how many of n steps the next state is kept."""
    if n_kept == 1:
        return n - 1
    n_times = 1
    while comb(n_kept + n_times, n_kept) < n:
        n_times += 1
    # At most what all states can serve in one time less, since these steps have run once already.
    # The rest is more than the other states can serve in one time less, so n_times is needed.
    most = comb(n_kept + n_times - 1, n_kept)
    return min(most, n - comb(n_kept + n_times - 2, n_kept - 1))
