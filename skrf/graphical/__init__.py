"""Inference in chains, trees and hidden Markov models, linear in the number of states."""

from ._emissions import GaussianEmissions
from ._error import ErrorReport
from .chain import ChainMRF
from .hmm import FilterState, KernelHMM
from .semi_markov import SemiMarkovChain
from .tree import TreeMRF

__all__ = [
    "ChainMRF",
    "ErrorReport",
    "FilterState",
    "GaussianEmissions",
    "KernelHMM",
    "SemiMarkovChain",
    "TreeMRF",
]
