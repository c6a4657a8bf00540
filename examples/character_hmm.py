"""Learn a hidden Markov model of letters from a text that ships with Python.

    python examples/character_hmm.py [--states 128] [--iterations 150]

The text is Python's own help, in lower case. L-BFGS maximises the exact likelihood, whose gradient
is computed for all sequences of 250 letters in parallel. The log likelihood of held-out text is
compared with that of a model without context (the unigram entropy) and with counts of pairs of
letters. Then the model generates text, and reads a sentence letter by letter: the online filter
keeps one distribution of the state and predicts how likely each letter is before it arrives. A
letter that cannot be read is treated as missing, and the posterior of its state suggests what it
may have been. Takes half a minute; a picture is saved to examples/output.
"""

import argparse
import re
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from skrf.graphical import KernelHMM

OUTPUT = Path(__file__).parent / "output"
LENGTH, N_SEQUENCES, N_HELD_OUT = 250, 160, 40
WIDTH, SCALE = 32, 0.3
SENTENCE = "the function returns a string."


def read_text():
    """Return the alphabet and the text as numbers, training part and held-out part."""
    text = " ".join(topics[name] for name in sorted(topics)).lower()
    text = re.sub(r"[^a-z.,]+", " ", text)
    alphabet = sorted(set(text))
    tokens = np.array([alphabet.index(letter) for letter in text])
    return alphabet, tokens[: N_SEQUENCES * LENGTH], tokens[-N_HELD_OUT * LENGTH :]


def simple_models(train, held_out, n_letters):
    """Return nats per letter of held-out text under counts of letters and of pairs of letters."""
    singles = np.bincount(train, minlength=n_letters) + 0.1
    pairs = np.full((n_letters, n_letters), 0.1)
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    pairs /= pairs.sum(axis=1, keepdims=True)
    return (
        -np.log(singles / singles.sum())[held_out].mean(),
        -np.log(pairs[held_out[:-1], held_out[1:]]).mean(),
    )


def read_online(model, letters):
    """Return before every letter the log probabilities of all, by the filter alone."""
    state, found = None, []
    for letter in letters:
        found.append(np.log(model.predict_next(state=state)))
        state = model.filter_step(letter, state)
    return np.array(found), state


def draw(history, held_out, surprises):
    """Save the convergence of the fit and the surprise at every letter of the sentence."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(np.arange(1, len(history) + 1), history, color="C0", label="training text")
    for (name, value), style in zip(held_out.items(), ("-", "--", ":"), strict=True):
        left.axhline(value, color="grey", linestyle=style, label=f"{name}, held-out text")
    left.set(xlabel="iteration", ylabel="log likelihood, nats per letter", title="fit")
    left.legend(loc="lower right")
    right.bar(np.arange(len(SENTENCE)), surprises, color="C0")
    right.set_xticks(np.arange(len(SENTENCE)), [letter.replace(" ", "_") for letter in SENTENCE])
    right.set(ylabel="surprise, nats", title="online filter")
    figure.savefig(OUTPUT / "character_hmm.png", dpi=110)


def main():
    """Learn, report, write and read."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=150)
    options = parser.parse_args()

    alphabet, train, held_out = read_text()
    unigram, bigram = simple_models(train, held_out, len(alphabet))
    shares = np.bincount(train) / len(train)
    entropy = -np.sum(shares * np.log(shares))
    print(f"{len(train)} letters of {len(alphabet)} kinds, unigram entropy {entropy:.3f} nats")
    model = KernelHMM.from_random(
        options.states,
        len(alphabet),
        WIDTH,
        scale=SCALE,
        max_iter=options.iterations,
        random_state=0,
    )
    start = time.perf_counter()
    model.fit(train, lengths=np.full(N_SEQUENCES, LENGTH))
    history = np.array(model.history_) / len(train)
    for count in sorted({1, 10, 30, 100, model.n_iter_}):
        if count <= model.n_iter_:
            print(f"iteration {count:4d}: {history[count - 1]:.3f} nats per letter")
    print(
        f"{options.states} states, {time.perf_counter() - start:.0f} s, "
        f"{'converged' if model.converged_ else 'stopped before it converged'}"
    )
    score = model.score(held_out, np.full(N_HELD_OUT, LENGTH)) / len(held_out)
    print(f"held-out text, nats per letter: hidden Markov model {score:.3f},")
    print(f"counts of pairs of letters {-bigram:.3f}, of single letters {-unigram:.3f}")

    drawn, _ = model.sample(300, random_state=0)
    print("It writes:", "".join(alphabet[token] for token in drawn[:, 0]))

    letters = [alphabet.index(letter) for letter in SENTENCE]
    logs, state = read_online(model, letters)
    print("It reads, and guesses before every letter:")
    for letter, row in zip(letters, logs, strict=True):
        guesses = [f"{alphabet[i]!r} {np.exp(row[i]):.2f}" for i in np.argsort(-row)[:3]]
        print(f"  {alphabet[letter]!r} at {np.exp(row[letter]):.2f}; guesses {', '.join(guesses)}")
    taken = [row[letter] for letter, row in zip(letters, logs, strict=True)]
    print(f"log probability of the sentence: {state.log_prob:.3f}, sum of letters {sum(taken):.3f}")

    at = SENTENCE.index("string") + 2
    smudged = np.ma.array(letters, mask=np.arange(len(letters)) == at)
    shares = model.predict_proba(smudged)[at] @ model.emissionprob_
    guesses = [f"{alphabet[i]!r} {shares[i]:.2f}" for i in np.argsort(-shares)[:3]]
    print(f"It reads {SENTENCE[:at]}_{SENTENCE[at + 1 :]} and guesses {', '.join(guesses)}")

    OUTPUT.mkdir(exist_ok=True)
    levels = {"hidden Markov model": score, "pairs of letters": -bigram, "single letters": -unigram}
    draw(history, levels, -np.array(taken))
    print(f"A picture is in {OUTPUT}")


if __name__ == "__main__":
    with threadpool_limits(1):  # the matrices are small: more threads would wait for each other
        main()
