"""Attention in time and memory linear in length, its exact reference, and what it is made of."""

from .exact import exact_attention
from .generalized import GeneralizedMap
from .masks import ToeplitzMask
from .near import NearField
from .operator import ApproxKernelAttention, AttentionDiagnosis, AttentionState
from .performer import Performer

__all__ = [
    "ApproxKernelAttention",
    "AttentionDiagnosis",
    "AttentionState",
    "GeneralizedMap",
    "NearField",
    "Performer",
    "ToeplitzMask",
    "exact_attention",
]
