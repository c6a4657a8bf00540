"""Reproduce the thesis' figures on attention: error (3.6) and time (3.3).

    python benchmarks/reproduce/attention.py                 both parts
    python benchmarks/reproduce/attention.py --only error    matrix and output against M
    python benchmarks/reproduce/attention.py --only time     wall time and memory against L
    python benchmarks/reproduce/attention.py --quick         both, smaller, under a minute

Likhosherstov, Random features for efficient attention approximation (thesis). Its
figures have no numbers in the text; what is checked are the orders that it states.

Times and memory: every case is a process of its own with --threads threads. A round runs all
methods of a size one after the other in shuffled order; tables have the fastest and the median
repetition of all rounds, and the processor time, which suffers less where a machine is shared: with
one thread both are the same on a quiet one. --clock cpu takes ratios and plots from it.
Where performer-pytorch is installed, it is measured, too.
"""

import _attention_error
import _attention_time
from _attention_cases import CLOCKS
from _common import names, parser, positive

PARTS = {"error": _attention_error, "time": _attention_time}


def main():
    """Run what the command line asks for."""
    made = parser(__doc__)
    made.add_argument("--only", type=names(PARTS), default=tuple(PARTS), help="parts, by commas")
    made.add_argument("--seeds", type=positive, help="error: number of seeds (10, quick 2)")
    made.add_argument("--rounds", type=positive, help="time: repetitions (3, quick 1)")
    made.add_argument("--threads", type=positive, default=1, help="time: threads (1)")
    made.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="time: that of ratios and plots"
    )
    options = made.parse_args()
    for part in options.only:
        PARTS[part].run(options)


if __name__ == "__main__":
    main()
