"""Attention in time and memory linear in the length, and exact attention as a reference."""

from ._diagnosis import AttentionDiagnosis
from ._state import AttentionState
from .compare import AttentionComparison, AttentionTable, compare_attention
from .exact import exact_attention
from .generalized import GeneralizedMap
from .masks import DecayMask, ToeplitzMask
from .merging import merge_attention
from .operator import ApproxKernelAttention
from .window import WindowAttention, WindowState

__all__ = [
    "ApproxKernelAttention",
    "AttentionComparison",
    "AttentionDiagnosis",
    "AttentionState",
    "AttentionTable",
    "DecayMask",
    "GeneralizedMap",
    "ToeplitzMask",
    "WindowAttention",
    "WindowState",
    "compare_attention",
    "exact_attention",
    "merge_attention",
]
