"""Attention: the exact reference."""

from .exact import exact_attention

__all__ = ["exact_attention"]
