"""Names for types in public signatures; they check nothing at run time."""

from typing import Any, Literal, TypeAlias

import numpy as np

# Dense and sparse arrays of every library, tables and nested lists share no common type, and
# scikit-learn defines none. These names are for readers.
Array: TypeAlias = Any
# What comes back is an array of the library of the input. Checkers are told the usual one.
Result: TypeAlias = np.ndarray
Estimator: TypeAlias = Any
Transformer: TypeAlias = Any

RandomState: TypeAlias = int | np.random.RandomState | None
Sigma: TypeAlias = float | Literal["scale", "median"]
Kernel: TypeAlias = Literal["gaussian", "softmax"]
