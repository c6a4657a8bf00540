"""Paragraphs shared by the docstrings of all feature maps, each written once.

`document` inserts them where a class docstring says ``%(name)s``.

[sigma]
The default kernel is exp(-sigma^2 |x - y|^2 / 2): sigma multiplies the inputs, so a larger sigma
gives a narrower kernel; sigma = 1/length_scale = sqrt(2 gamma).

[n_components]
n_components : int, default=100
    Number of components.

[sigma_parameter]
sigma : float, "scale", "median" or None, default=None
    Multiplier of the inputs. "scale" is sqrt(2/(d Var X)), equivalent to gamma="scale" in SVC;
    "median" is one over the median distance between at most 1,000 rows. Both use queries only.
    None means "scale", or 1 for the softmax kernel, which is not a function of distances.

[kernel]
kernel : {"gaussian", "softmax"}, default="gaussian"
    exp(-sigma^2 |x - y|^2 / 2), or exp(sigma^2 x.y).

[coupling]
coupling : {%(couplings)s} or Coupling, default="%(default)s"
    Joint distribution of the projections; each one is standard normal.

[projection]
projection : {"dense", "hadamard"}, default="dense"
    How the projections are stored. "hadamard" builds blocks from fast Walsh-Hadamard transforms
    and random signs: O(log n_features) operations per row and projection instead of O(n_features),
    and a few numbers per projection instead of n_features. It is faster from about 150 features on,
    and four times as fast at 512. Up to 128 features, the matrix is faster, and is kept from the
    first call on. Its rows are only nearly Gaussian, so the estimate is only nearly unbiased, and
    its variance has no known closed form. It supports the couplings "iid" (rows at random angles,
    not independent), "orthogonal", "simplex" and "simplex+" (several times slower than
    "simplex"), pads inputs with zeros to a power of two, and needs more than 8 features.

[center]
center : bool, default=True
    Shift the origin to the midpoint of the means of queries and keys. The kernel does not change,
    and the variance is smallest with this origin.

[discrete]
positive : bool, default=False
    Shift inputs above zero, so that every feature is positive. Entries below the fitted minimum
    are clamped inside the products, which biases the estimates of their rows.
per_feature : bool, default=True
    Fit one parameter per input column, instead of a single one as in the papers.

[discrete_center]
center : bool, default=True
    With ``positive=False, per_feature=False`` and keys with the same mean as the queries, shift
    the origin to that mean. In all other cases this would not help, and the parameter is ignored.

[random_state]
random_state : int, RandomState instance or None, default=None
    Source of the single integer that seeds a fit. Inside GridSearchCV, pass an integer: with 100
    components, the draw alone changes the accuracy by several points.

[attributes]
n_components_ : int
    Number of components.
sigma_, gamma_ : float
    The kernel's scale: the multiplier of the inputs, and the gamma of `rbf_kernel`, which only
    the Gaussian kernel has.
omega_ : ndarray of shape (n_projections, n_features)
    The projections, not multiplied by sigma; absent with projection="hadamard".
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
    _, *sections = re.split(r"^\[(\w+)\]\n", __doc__, flags=re.MULTILINE)
    shared = {name: text.strip() for name, text in zip(sections[::2], sections[1::2], strict=True)}
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
