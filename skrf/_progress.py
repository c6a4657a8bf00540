"""Lines that tell how far a long fit has come."""

import time


class Progress:
    """Prints what was done, with the seconds since it was made.

    Parameters
    ----------
    verbose : int
        0 prints nothing.
    name : str, default="fit"
        What a line begins with.
    """

    def __init__(self, verbose, name="fit"):
        self.verbose, self.name, self.start = verbose, name, time.perf_counter()

    def __call__(self, text):
        """Print a line."""
        if self.verbose:
            print(f"[{self.name}] {text}, {time.perf_counter() - self.start:.1f} s")
