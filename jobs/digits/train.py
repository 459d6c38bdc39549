"""Train a small neural network on handwritten digits, with the standard library alone.

The result depends on SEED, EPOCHS, LR and HIDDEN and on nothing else: however often the run is
stopped, killed and resumed, and whichever Python from 3.9 on runs it, model.json and metrics.json
come out the same to the byte. For that, the arithmetic keeps to operations that IEEE 754 fixes
exactly (+ - * / in a written order): no sum() of floats, whose rounding changed in Python 3.12, and
no exp() of the C library, whose last bit differs between systems.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "digits.csv.gz"
TEST_IMAGES = 360  # the last ones in the file
SIDE = 8
CLASSES = 10
BATCH = 16
MOMENTUM = 0.9
DECAY = 1e-4  # L2 penalty
AVERAGING = 0.995  # the model handed out is a moving average of the weights
SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # (down, right), in pixels
SHIFTED = 0.25  # how often an image is learnt from one pixel off its place
SAVED_AND_RESUMABLE = 75

Vector = list[float]
Matrix = list[Vector]
Image = list[tuple[int, float]]  # (pixel, brightness) of the pixels that are not blank


class Settings(NamedTuple):
    """What decides the result."""

    seed: int
    epochs: int
    lr: float
    hidden: int

    @classmethod
    def from_environment(cls) -> Settings:
        """Read SEED, EPOCHS, LR and HIDDEN."""
        return cls(
            seed=int(os.environ.get("SEED", "0")),
            epochs=int(os.environ.get("EPOCHS", "26")),
            lr=float(os.environ.get("LR", "0.1")),
            hidden=int(os.environ.get("HIDDEN", "64")),
        )


class Data(NamedTuple):
    """Images and their digits."""

    images: list[Image]
    labels: list[int]


class StopRequest:
    """Remembers that a signal asked the run to stop."""

    def __init__(self) -> None:
        self.signal = 0
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number


# --- data ------------------------------------------------------------------------------------


def load(path: Path) -> tuple[Data, Data]:
    """Return the training and the test part."""
    with gzip.open(path, "rt", newline="") as file:
        rows = [[int(cell) for cell in row] for row in csv.reader(file)]
    images = [inked(row[:-1]) for row in rows]
    labels = [row[-1] for row in rows]
    return (
        Data(images[:-TEST_IMAGES], labels[:-TEST_IMAGES]),
        Data(images[-TEST_IMAGES:], labels[-TEST_IMAGES:]),
    )


def inked(pixels: list[int]) -> Image:
    """Return the pixels that are not blank, brightness 0 to 1."""
    return [(place, ink / 16.0) for place, ink in enumerate(pixels) if ink]


def moved(image: Image, down: int, right: int) -> Image:
    """Return the image shifted; what leaves the square is gone."""
    return [
        (place + down * SIDE + right, ink)
        for place, ink in image
        if 0 <= place // SIDE + down < SIDE and 0 <= place % SIDE + right < SIDE
    ]


# --- arithmetic ------------------------------------------------------------------------------

LN2_HIGH = 2977044471 / 2**32  # so short that its product with a small integer is exact
LN2_LOW = 1.9082149292705877e-10  # the rest of log 2


def exp(x: float) -> float:
    """Return e to the power x, for x <= 0, the same to the last bit on every system."""
    if x < -700.0:
        return 0.0
    halvings = math.floor(x / (LN2_HIGH + LN2_LOW) + 0.5)
    rest = (x - halvings * LN2_HIGH) - halvings * LN2_LOW
    total = 1.0
    for n in (13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1):
        total = 1.0 + total * rest / n
    return math.ldexp(total, halvings)


class Network:
    """A hidden layer of rectified units and a softmax; `layers` are W1 (+ bias row), W2 (+ bias row)."""

    def __init__(self, layers: list[Matrix]) -> None:
        self.layers = layers

    def forward(self, image: Image) -> tuple[Vector, Vector, Vector, float]:
        """Return hidden activations, class probabilities, shifted scores and log of their total."""
        first, second = self.layers
        raw = first[-1]
        for pixel, ink in image:
            raw = [a + ink * b for a, b in zip(raw, first[pixel])]
        hidden = [a if a > 0.0 else 0.0 for a in raw]
        scores = second[-1]
        for active, weights in zip(hidden, second):
            if active:
                scores = [a + active * b for a, b in zip(scores, weights)]
        top = max(scores)
        shifted = [score - top for score in scores]
        powers = [exp(score) for score in shifted]
        total = 0.0
        for power in powers:
            total += power
        return hidden, [power / total for power in powers], shifted, math.log(total)

    def gradient(self, image: Image, label: int, into: list[Matrix]) -> tuple[float, bool]:
        """Add this image's gradient to `into`; return its loss and whether the guess was right."""
        second = self.layers[1]
        into_first, into_second = into
        hidden, delta, shifted, log_total = self.forward(image)
        right = shifted[label] == 0.0
        delta[label] -= 1.0
        into_second[-1] = [g + d for g, d in zip(into_second[-1], delta)]
        back = []
        for unit, active in enumerate(hidden):
            error = 0.0
            if active:
                for d, weight in zip(delta, second[unit]):
                    error += d * weight
                into_second[unit] = [g + active * d for g, d in zip(into_second[unit], delta)]
            back.append(error)
        into_first[-1] = [g + d for g, d in zip(into_first[-1], back)]
        for pixel, ink in image:
            into_first[pixel] = [g + ink * d for g, d in zip(into_first[pixel], back)]
        return log_total - shifted[label], right

    def evaluate(self, data: Data) -> tuple[float, float]:
        """Return mean loss and accuracy on unmoved images."""
        losses = []
        correct = 0
        for image, label in zip(data.images, data.labels):
            _, _, shifted, log_total = self.forward(image)
            losses.append(log_total - shifted[label])
            correct += shifted[label] == 0.0
        return math.fsum(losses) / len(losses), correct / len(losses)


# --- training state --------------------------------------------------------------------------


def zeros(like: list[Matrix]) -> list[Matrix]:
    """Return zero matrices of the same shapes."""
    return [[[0.0] * len(row) for row in matrix] for matrix in like]


class Training:
    """Everything that the next step depends on. What is not in here is not saved."""

    def __init__(self, settings: Settings, images: int) -> None:
        self.settings = settings
        self.steps_an_epoch = -(-images // BATCH)
        self.total = settings.epochs * self.steps_an_epoch
        self.rng = random.Random(settings.seed)
        self.step = 0
        self.epoch = 0
        self.position = 0  # images of this epoch that are done
        self.order = list(range(images))
        self.rng.shuffle(self.order)
        self.loss = 0.0  # summed over this epoch so far
        self.correct = 0
        self.weights = [
            self._layer(SIDE * SIDE, settings.hidden),
            self._layer(settings.hidden, CLASSES),
        ]
        self.velocity = zeros(self.weights)
        self.average = [[list(row) for row in matrix] for matrix in self.weights]

    def _layer(self, inputs: int, outputs: int) -> Matrix:
        reach = math.sqrt(6.0 / (inputs + outputs))
        rows = [
            [(2.0 * self.rng.random() - 1.0) * reach for _ in range(outputs)] for _ in range(inputs)
        ]
        return [*rows, [0.0] * outputs]

    @property
    def finished(self) -> bool:
        """Whether every epoch is done."""
        return self.step >= self.total

    def advance(self, data: Data) -> None:
        """Do one step: one batch, one update."""
        if self.position >= len(self.order):
            self.epoch += 1
            self.position, self.loss, self.correct = 0, 0.0, 0
            self.rng.shuffle(self.order)
        batch = self.order[self.position : self.position + BATCH]
        network, gradient = Network(self.weights), zeros(self.weights)
        for index in batch:
            image = data.images[index]
            draw = self.rng.random() / SHIFTED
            if draw < 1.0:
                image = moved(image, *SHIFTS[int(draw * len(SHIFTS))])
            loss, right = network.gradient(image, data.labels[index], gradient)
            self.loss += loss
            self.correct += right
        self._update(gradient, len(batch))
        self.position += len(batch)
        self.step += 1

    def _update(self, gradient: list[Matrix], batch: int) -> None:
        rate = self.settings.lr * (1.0 - self.step / self.total)
        fresh = 1.0 - AVERAGING
        for weights, velocity, average, slope in zip(
            self.weights, self.velocity, self.average, gradient
        ):
            for i, (w, v, a, g) in enumerate(zip(weights, velocity, average, slope)):
                velocity[i] = [MOMENTUM * y + (z / batch + DECAY * x) for x, y, z in zip(w, v, g)]
                weights[i] = [x - rate * y for x, y in zip(w, velocity[i])]
                average[i] = [AVERAGING * x + fresh * y for x, y in zip(a, weights[i])]

    def report(self) -> dict[str, Any]:
        """Return the progress of this epoch on the training images."""
        done = max(self.position, 1)
        return {
            "step": self.step,
            "total": self.total,
            "loss": round(self.loss / done, 4),
            "accuracy": round(self.correct / done, 4),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the state; JSON keeps every bit of a Python float."""
        version, words, gauss = self.rng.getstate()
        return {
            "settings": self.settings._asdict(),
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "order": self.order,
            "loss": self.loss,
            "correct": self.correct,
            "rng": [version, list(words), gauss],
            "weights": self.weights,
            "velocity": self.velocity,
            "average": self.average,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        saved = Settings(**state["settings"])
        if saved != self.settings:
            sys.exit(f"the checkpoint is of another run: {saved}, this one is {self.settings}")
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))
        for name in ("step", "epoch", "position", "order", "loss", "correct"):
            setattr(self, name, state[name])
        for name in ("weights", "velocity", "average"):
            setattr(self, name, state[name])


# --- files -----------------------------------------------------------------------------------


def save(path: Path, state: dict[str, Any], piece: int = 24 * 1024) -> None:
    """Replace the file at once or not at all: a kill at any moment leaves the old one whole."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="ascii") as file:
        waiting, separator = "", "{"
        for key, value in state.items():
            waiting += separator + json.dumps(key) + ":" + json.dumps(value, separators=(",", ":"))
            separator = ","
            while len(waiting) >= piece:
                file.write(waiting[:piece])
                file.flush()
                os.fsync(file.fileno())
                waiting = waiting[piece:]
        file.write(waiting + "}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # the new name must survive a power cut too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def folder(variable: str, default: str) -> Path:
    """Return the folder that freegpu names, or one beside the current directory's files."""
    path = Path(os.environ.get(variable) or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


# --- the run ---------------------------------------------------------------------------------


def main() -> int:
    """Train, or continue to; return the exit code."""
    stop = StopRequest()
    settings = Settings.from_environment()
    save_every = int(os.environ.get("SAVE_EVERY", "110"))  # in steps; does not change the result
    checkpoint = folder("FREEGPU_CHECKPOINT_DIR", "ckpt") / "state.json"
    outputs = folder("FREEGPU_OUTPUT_DIR", "out")

    train, test = load(DATA)
    training = Training(settings, len(train.labels))
    if checkpoint.exists():
        training.restore(json.loads(checkpoint.read_text(encoding="ascii")))
        say(f"resumed at step {training.step} of {training.total}, epoch {training.epoch + 1}")
    elif os.environ.get("FREEGPU_RESUME") == "1":
        say(f"told to resume, but there is no {checkpoint}: starting from the beginning")
    else:
        say(f"{len(train.labels)} images to learn from, {len(test.labels)} to test on; {settings}")

    saved_at = training.step
    told_at = time.monotonic()
    while not training.finished:
        if stop.signal:
            if training.step > saved_at or not checkpoint.exists():
                save(checkpoint, training.to_json())
            say(f"stopped by signal {stop.signal}: saved at step {training.step}")
            return SAVED_AND_RESUMABLE
        training.advance(train)
        if training.step - saved_at >= save_every:
            save(checkpoint, training.to_json())
            saved_at = training.step
        if time.monotonic() - told_at >= 1.0:
            told_at = time.monotonic()
            report = training.report()
            say("FREEGPU_PROGRESS " + json.dumps(report))
            say(
                f"epoch {training.epoch + 1:3d}/{settings.epochs}  step {training.step:5d}"
                f"  loss {report['loss']:.4f}  accuracy {report['accuracy']:.4f}"
            )

    loss, accuracy = Network(training.average).evaluate(test)
    first, second = training.average
    save(
        outputs / "model.json",
        {
            "hidden": first[:-1],
            "hidden_bias": first[-1],
            "out": second[:-1],
            "out_bias": second[-1],
        },
    )
    save(
        outputs / "metrics.json",
        {"accuracy": round(accuracy, 6), "loss": round(loss, 6), **settings._asdict()},
    )
    summary = {"loss": round(loss, 4), "accuracy": round(accuracy, 4)}
    say(
        "FREEGPU_PROGRESS "
        + json.dumps({"step": training.step, "total": training.total, **summary})
    )
    say(f"done: {accuracy:.1%} of {len(test.labels)} unseen digits read right, loss {loss:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
