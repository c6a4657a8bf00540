"""Attention with random features and local attention, for torch models."""

from .chunks import chunked_loss
from .local import LocalAttention
from .module import RandomFeatureAttention
from .states import LocalStreamState, StreamState

__all__ = [
    "LocalAttention",
    "LocalStreamState",
    "RandomFeatureAttention",
    "StreamState",
    "chunked_loss",
]
