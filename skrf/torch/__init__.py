"""Attention with random features, for torch models."""

from .chunks import chunked_loss
from .module import RandomFeatureAttention
from .states import StreamState

__all__ = [
    "RandomFeatureAttention",
    "StreamState",
    "chunked_loss",
]
