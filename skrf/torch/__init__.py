"""Attention with random features in models of torch."""

from .module import RandomFeatureAttention

__all__ = ["RandomFeatureAttention"]
