"""Paragraphs shared by the docstrings of all feature maps, each written once.

`document` inserts them where a class docstring says ``%(name)s``.

[sigma]
The kernel is by default exp(-sigma^2 |x - y|^2 / 2): sigma multiplies the inputs, so that a larger
sigma is a narrower kernel. sigma = 1/length_scale = sqrt(2 gamma).

[n_components]
n_components : int, default=100
    Number of components.

[sigma_parameter]
sigma : float, "scale", "median" or None, default=None
    Multiplier of the inputs. "scale" is sqrt(2/(d Var X)), as SVC's gamma="scale"; "median" is
    one over the median distance between at most 1,000 rows. Both look at queries only. None is
    "scale", and 1 under the softmax kernel, of which it is a part.

[kernel]
kernel : {"gaussian", "softmax"}, default="gaussian"
    exp(-sigma^2 |x - y|^2 / 2), or exp(sigma^2 x.y).

[coupling]
coupling : {%(couplings)s} or Coupling, default="%(default)s"
    Joint law of the projections; each one is standard normal.

[projection]
projection : {"dense", "hadamard"}, default="dense"
    How the projections are stored. "hadamard" draws blocks of fast Walsh-Hadamard transforms and
    random signs: O(log n_features) operations per row and projection instead of O(n_features), and
    a few numbers per projection instead of n_features. Choose it for about 256 features or more.
    Its rows are only nearly Gaussian, so the estimate is only nearly unbiased and no closed form of
    its variance is known. It supports the couplings "iid" (rows at random angles, not independent),
    "orthogonal", "simplex" and "simplex+", pads inputs with zeros to 2^k or 12, 20, 28 times 2^k
    columns, and needs more than 12 features. Small and large calls may give results that differ by
    rounding, because large ones use compiled code.

[center]
center : bool, default=True
    Shift inputs to the midpoint of the means of queries and keys. The kernel does not change, and
    the variance is smallest there.

[discrete]
positive : bool, default=False
    Shift inputs above zero, so that every feature is positive. Rows below the fitted minimum
    are clamped inside the products, which biases their estimates.
per_feature : bool, default=True
    Fit one parameter per input column instead of the papers' single one.

[discrete_center]
center : bool, default=True
    With ``positive=False, per_feature=False`` and keys whose mean is that of the queries, shift
    inputs to that mean. In all other cases a shift gains nothing and none is made.

[random_state]
random_state : int, RandomState instance or None, default=None
    Source of the one integer that seeds a fit. Pass an integer inside GridSearchCV: with 100
    columns the draw alone moves accuracy by several points.

[attributes]
n_components_ : int
    Number of components.
sigma_, gamma_ : float
    The kernel's scale in three notations.
omega_ : ndarray of shape (n_projections, n_features)
    The projections, standard (not multiplied by sigma); absent with projection="hadamard".
statistics_ : PairStatistics
    Mergeable statistics of the queries and keys seen by `fit`.
n_features_in_ : int
    Number of input features.
feature_names_in_ : ndarray of shape (n_features_in_,)
    Names of the input features, if X had any.

[offset_]
offset_ : ndarray of shape (n_features,)
    The shift c, in units of X; zeros without centring.
"""

import inspect
import re

from ..projections import COUPLINGS


def _paragraphs():
    """Return the paragraphs of this module's docstring by name."""
    _, *parts = re.split(r"^\[(\w+)\]\n", __doc__, flags=re.MULTILINE)
    shared = {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    names = ", ".join(f'"{name}"' for name in COUPLINGS)
    return {**shared, "coupling": shared["coupling"].replace("%(couplings)s", names)}


def document(cls):
    """Fill the placeholders of a class docstring with the shared paragraphs."""
    if cls.__doc__ is None:  # python -OO
        return cls
    lines, shared = [], _paragraphs()
    if "coupling" in inspect.signature(cls).parameters:
        default = inspect.signature(cls).parameters["coupling"].default
        shared["coupling"] = shared["coupling"].replace("%(default)s", default)
    for line in inspect.cleandoc(cls.__doc__).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        for name, text in shared.items():
            line = line.replace(f"%({name})s", text.replace("\n", "\n" + indent))
        lines.append(line)
    cls.__doc__ = "\n".join(lines)
    return cls
