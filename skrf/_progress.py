"""Lines that report the progress of a long fit."""

import time


class Progress:
    """Prints what was done, with the seconds since this object was created.

    Parameters
    ----------
    verbose : int
        0 prints nothing.
    name : str, default="fit"
        Prefix of every line.
    """

    def __init__(self, verbose, name="fit"):
        self.verbose, self.name, self.start = verbose, name, time.perf_counter()

    def __call__(self, text):
        """Print a line."""
        if self.verbose:
            print(f"[{self.name}] {text}, {time.perf_counter() - self.start:.1f} s")

    def count(self, what, number, total):
        """Print a line if another tenth of many things is done."""
        if number * 10 // total > (number - 1) * 10 // total:
            self(f"{what} {number} of {total}")
