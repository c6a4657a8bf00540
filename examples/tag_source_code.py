"""Tag every letter of Python source code: a chain with evidence versus each letter on its own.

    python examples/tag_source_code.py [--files 26]

Every letter of Python's standard library is part of a comment, a string, a keyword, a name, a
number, an operator or a space; the module `tokenize` provides these tags. A logistic regression
sees a window of five letters, which is too little to tell whether a word is inside a string. Its
log probabilities, minus those of the tags alone, are the evidence of a chain whose potentials are
learnt from sequences of tags by maximum likelihood. Six files are held out for testing. The picture
shows some lines of code as tagged by both, coloured by tag. Takes about 20 seconds.
"""

import argparse
import io
import keyword
import sysconfig
import time
import tokenize
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder
from threadpoolctl import threadpool_limits

from skrf.graphical import ChainMRF

OUTPUT = Path(__file__).parent / "output"
TAGS = ("space", "comment", "string", "keyword", "name", "number", "operator")
COLOURS = ("0.9", "#2e8b57", "#c0392b", "#7d3c98", "#1f77b4", "#d68910", "0.45")
REACH, LENGTH, WIDTH = 2, 200, 6


def tags_of(text):
    """Return the tag of every letter, as `tokenize` has it."""
    starts = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    kinds = {tokenize.COMMENT: 1, tokenize.STRING: 2, tokenize.NUMBER: 5, tokenize.OP: 6}
    tags = np.zeros(len(text), dtype=int)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        tag = kinds.get(token.type, 0)
        if token.type == tokenize.NAME:
            tag = 3 if keyword.iskeyword(token.string) else 4
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        tags[begin:end] = np.where(tags[begin:end], tags[begin:end], tag)
    return tags


def read_code(n_files):
    """Return lists of texts and of their tags, from the smaller files of Python's library."""
    texts, tags = [], []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if 2_000 < len(text) < 30_000 and "f'" not in text and 'f"' not in text:
            texts.append(text.replace("\r\n", "\n"))
            tags.append(tags_of(texts[-1]))
    chosen = np.random.default_rng(0).permutation(len(texts))[:n_files]
    return [texts[i] for i in chosen], [tags[i] for i in chosen]


def windows(text):
    """Return the codes of the letters around every letter."""
    codes = np.minimum(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), 127)
    padded = np.pad(codes, REACH)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * REACH + 1)


def draw(text, panels):
    """Save some lines of code, the letters coloured by tag."""
    figure = Figure(figsize=(8, 10), layout="constrained")
    lines = text.splitlines()
    for axis, (title, tags) in zip(figure.subplots(len(panels)), panels.items(), strict=True):
        at = 0
        for row, line in enumerate(lines):
            for column, letter in enumerate(line):
                colour = COLOURS[tags[at]]
                axis.text(column, -row, letter, color=colour, family="monospace", fontsize=8)
                at += 1
            at += 1  # the end of the line
        axis.set(xlim=(0, max(map(len, lines)) + 1), ylim=(-len(lines), 1), title=title)
        axis.axis("off")
    handles = [
        figure.axes[0].plot([], [], "s", color=colour, label=tag)[0]
        for tag, colour in list(zip(TAGS, COLOURS, strict=True))[1:]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "tag_source_code.png", dpi=110)


def main():
    """Learn, tag, compare and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=26)
    options = parser.parse_args()
    if options.files < 7:
        parser.error(f"--files must be at least 7, as six of them test; got {options.files}")
    texts, tags = read_code(options.files)
    n_train = len(texts) - 6

    # Evidence: what a window of letters says about a tag, beyond how frequent the tag is.
    encoder = OneHotEncoder(handle_unknown="ignore")
    X = encoder.fit_transform(np.vstack([windows(text) for text in texts[:n_train]]))
    y = np.concatenate(tags[:n_train])
    local = LogisticRegression(max_iter=200).fit(X, y)
    log_shares = np.log(np.bincount(y) / len(y))

    # Potentials: from sequences of tags alone.
    start = time.perf_counter()
    paths = [
        own[begin : begin + LENGTH]
        for own in tags[:n_train]
        for begin in range(0, len(own) - LENGTH, LENGTH)
    ]
    earlier, later = np.random.default_rng(0).normal(size=(2, len(TAGS), WIDTH)) / 2
    chain = ChainMRF(earlier, later, max_iter=60, tol=1e-4).fit(np.array(paths))
    print(f"{len(paths)} sequences of {LENGTH} tags learnt in {time.perf_counter() - start:.1f} s")

    right = {"letters alone": 0, "chain, most probable path": 0, "chain, largest marginals": 0}
    n_letters, guesses = 0, []
    start = time.perf_counter()
    for text, own in zip(texts[n_train:], tags[n_train:], strict=True):
        logs = local.predict_log_proba(encoder.transform(windows(text)))
        chain.set_params(unary=logs - log_shares)
        found = logs.argmax(axis=1), chain.decode()[1], chain.marginals().argmax(axis=1)
        for name, guess in zip(right, found, strict=True):
            right[name] += np.count_nonzero(guess == own)
        n_letters += len(own)
        guesses.append(found)
    seconds = time.perf_counter() - start
    print(f"{n_letters} letters tagged in {seconds:.1f} s; shares that are right:")
    largest = np.bincount(np.concatenate(tags[n_train:])).max() / n_letters
    print(f"  always the most frequent tag  {largest:.3f}")
    for name, count in right.items():
        print(f"  {name:29s} {count / n_letters:.3f}")

    # The stretch of 14 lines with at least five tags in which the chain mends most.
    text, own, (alone, path, _) = texts[n_train], tags[n_train], guesses[0]
    ends = np.flatnonzero(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) == ord("\n"))
    mended = np.cumsum((path == own).astype(int) - (alone == own))[ends]
    parts = zip(ends[:-14], ends[14:], strict=True)
    is_mixed = [len(np.unique(own[begin:end])) >= 5 for begin, end in parts]
    first = np.argmax(np.where(is_mixed, mended[14:] - mended[:-14], -np.inf))
    part = slice(ends[first] + 1, ends[first + 14])
    panels = {"letters alone": alone[part], "chain": path[part], "truth": own[part]}
    draw(text[part], panels)
    print(f"The picture is {OUTPUT / 'tag_source_code.png'}")
    assert right["chain, most probable path"] > 1.05 * right["letters alone"]


if __name__ == "__main__":
    with threadpool_limits(1):  # the matrices are small: more threads would wait for each other
        main()
