"""Names for what public signatures take and return; nothing is checked by them at run time."""

from typing import Any, Literal, TypeAlias

import numpy as np

# Dense and sparse arrays of every library, tables and nested lists have no type in common, and
# scikit-learn has no types of its own. These names are for readers.
Array: TypeAlias = Any
Estimator: TypeAlias = Any
Transformer: TypeAlias = Any

RandomState: TypeAlias = int | np.random.RandomState | None
Sigma: TypeAlias = float | Literal["scale", "median"]
Kernel: TypeAlias = Literal["gaussian", "softmax"]
