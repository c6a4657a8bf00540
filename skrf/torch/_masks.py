"""Masks of modules, parts of which may be trained."""

import copy

import torch

from ..attention import DecayMask, ToeplitzMask
from ..attention._masks import owned

__all__ = ["TRAINED_PARTS", "is_stream_mask", "mask_of_call", "owned"]

TRAINED_PARTS = {ToeplitzMask: ("weights",), DecayMask: ("rate",)}


def is_stream_mask(mask):
    """Return whether a mask is None or a decay; that of a callable is checked at every step."""
    return mask is None or isinstance(mask, DecayMask) or _is_called(mask)


def mask_of_call(module):
    """Return the mask of a module with what is trained of it as it is now."""
    mask = module.mask
    if type(mask) in TRAINED_PARTS:
        # torch replaces parameters in load_state_dict(assign=True) and functional_call.
        mask = copy.copy(mask)
        for part in TRAINED_PARTS[type(mask)]:
            if (trained := getattr(module, f"mask_{part}")) is not None:
                setattr(mask, part, trained)
        return mask
    return mask() if _is_called(mask) else mask


def _is_called(mask):
    return callable(mask) and not isinstance(mask, torch.Tensor)
