"""Attention in time and memory linear in length, its exact reference, and its parts."""

from ._diagnosis import AttentionDiagnosis
from ._stream import AttentionState
from .advice import (
    AttentionAdvice,
    AttentionCandidate,
    AttentionTable,
    recommend_attention,
)
from .exact import exact_attention
from .generalized import GeneralizedMap
from .masks import ToeplitzMask
from .near import NearField
from .operator import ApproxKernelAttention

__all__ = [
    "ApproxKernelAttention",
    "AttentionAdvice",
    "AttentionCandidate",
    "AttentionDiagnosis",
    "AttentionState",
    "AttentionTable",
    "GeneralizedMap",
    "NearField",
    "ToeplitzMask",
    "exact_attention",
    "recommend_attention",
]
