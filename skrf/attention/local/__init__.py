"""Local attention: nearby keys, a few heavy keys, and summaries of the rest."""

from .attention import LocalAttention
from .state import LocalState

__all__ = ["LocalAttention", "LocalState"]
