"""Attention with random features in models of torch."""

from .chunks import chunked_loss
from .module import RandomFeatureAttention
from .states import StreamState

__all__ = ["RandomFeatureAttention", "StreamState", "chunked_loss"]
