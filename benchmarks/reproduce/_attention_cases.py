"""What the child processes of attention.py run: one case of time and peak memory each.

The peak is the operating system's: the high-water mark of this process, set back before the call
where the system allows it (Linux), and the largest resident size of its life elsewhere.
"""

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

# No NumPy up here: the parent sets the number of threads of a child in its environment.

CLOCKS = {"wall": "wall time", "cpu": "processor time"}
MOST_REPETITIONS = 7
WARM_UP_LENGTH = 64


# ---------------------------------------------------------------- the parent's side


def run_child(kind, *arguments, threads):
    """Run a case in a process of its own and return its record, or {"failed": the last line}."""
    done = subprocess.run(
        [sys.executable, __file__, kind, json.dumps(arguments)],
        env={
            **os.environ,
            **{f"{name}_NUM_THREADS": str(threads) for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")},
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return {"failed": lines[-1]}
    return json.loads(done.stdout)


# ---------------------------------------------------------------- the child's side


def status(field):
    """Return a field of /proc/self/status in bytes, or None where there is no such file."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None


def peak():
    """Return the peak of the resident memory in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak():
    """Set the peak back to what is resident now, and return that.

    What was freed is given back first, where the C library can: it would be used again by the call,
    unseen (now and then a whole gradient was).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS") or peak()


def measure(call, seconds):
    """Return times of repeated calls, and the growth of the peak memory during them.

    The first call also pays for caches and fresh pages: its time counts where it is the only one.
    """
    before, began = reset_peak(), time.perf_counter()
    wall, cpu = [], []
    while True:
        start = time.perf_counter(), time.process_time()
        result = call()
        now = time.perf_counter(), time.process_time()
        wall.append(now[0] - start[0])
        cpu.append(now[1] - start[1])
        del result  # or two results would be alive in the next call
        if len(wall) > MOST_REPETITIONS or now[0] - began > seconds:
            break
    return {"wall": wall[1:] or wall, "cpu": cpu[1:] or cpu, "memory": peak() - before}


def attention_case(method, length, heads, width, n_components, std, seed, seconds):
    """Measure the forward pass of a method, and the forward with the backward pass."""
    import numpy as np

    def inputs(n):
        rng = np.random.default_rng(seed)
        arrays = [rng.standard_normal((1, heads, n, width), dtype=np.float32) for _ in range(4)]
        for array in arrays[:2]:
            array *= std
        return arrays

    name, _, mode = method.partition("-")
    makers = {"ours": ours, "exact": exact, "sdpa": sdpa, "matrix": whole_matrix}
    make = (makers | {"performer": performer})[name]
    prepare = make(mode == "causal", n_components, seed)
    for call in prepare(*inputs(WARM_UP_LENGTH)):
        if call is not None:
            call()
    forward, both = prepare(*inputs(length))
    record = {"forward": measure(forward, seconds)}
    if both is not None:
        record["both"] = measure(both, seconds)
    return record


def ours(causal, n_components, seed):
    """Return a function of q, k, v and a gradient that returns the two calls: this library's.

    The forward pass is NumPy's; forward and backward are torch's, where that is installed.
    """
    from importlib.util import find_spec

    from skrf import OptimalPositiveRF
    from skrf.attention import ApproxKernelAttention

    features = OptimalPositiveRF(n_components, random_state=seed)
    attend = ApproxKernelAttention(features, causal=causal)
    both = None
    if find_spec("torch"):
        from skrf.torch import RandomFeatureAttention

        both = differentiated(RandomFeatureAttention(features, is_causal=causal))

    def prepare(q, k, v, gradient):
        pair = None if both is None else both(q, k, v, gradient)[1]
        return lambda: attend(q, k, v), pair

    return prepare


def exact(causal, n_components, seed):
    """Like `ours`, this library's exact attention: it has no backward pass."""
    from skrf.attention import exact_attention

    return lambda q, k, v, gradient: (lambda: exact_attention(q, k, v, causal=causal), None)


def sdpa(causal, n_components, seed):
    """Like `ours`, PyTorch's fused exact attention."""
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    return differentiated(lambda q, k, v: attention(q, k, v, is_causal=causal))


def whole_matrix(causal, n_components, seed):
    """Like `ours`, exact attention that holds its matrix, as Transformers of 2020 did."""
    import torch

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v

    return differentiated(attention)


def performer(causal, n_components, seed):
    """Like `ours`, the package performer-pytorch; causal, it falls back to its CPU code."""
    import torch
    from performer_pytorch import FastAttention

    torch.manual_seed(seed)
    return differentiated(FastAttention(dim_heads=64, nb_features=n_components, causal=causal))


def differentiated(attention):
    """Return what `ours` returns for a function of tensors."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def prepare(*arrays):
        *inputs, gradient = map(torch.from_numpy, arrays)

        def forward():
            with torch.no_grad():
                return attention(*inputs)

        def both():
            own = [tensor.detach().requires_grad_() for tensor in inputs]
            return torch.autograd.grad(attention(*own), own, gradient)

        return forward, both

    return prepare


if __name__ == "__main__":
    case = {"attention": attention_case}[sys.argv[1]]
    # Packages may print while they load; standard output is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        result = case(*json.loads(sys.argv[2]))
    print(json.dumps(result))
