"""Train a small convolutional network with PyTorch, so that it can be stopped anywhere.

Stopped and resumed on the same kind of device, at the same precision, the run ends with the same
weights to the bit as one left alone. On another card it continues from the same state, with that
card's rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # repeatable matrix products

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everybody calls it)
from torch.utils.data import DataLoader, Sampler, TensorDataset

SAVED_AND_RESUMABLE = 75
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, help=".npz with `images` (N,H,W or N,H,W,C) and `labels`"
    )
    parser.add_argument(
        "--images", type=int, default=20_000, help="how many to make up without --data"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=float(os.environ.get("LR", "0.05")))
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    parser.add_argument(
        "--save-every", type=float, default=300.0, help="seconds between checkpoints"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


# --- data ------------------------------------------------------------------------------------


def load(path: Path | None, made_up: int) -> tuple[TensorDataset, TensorDataset, int]:
    """Return training images, test images (the last tenth) and the number of classes."""
    if path is None:
        images, labels = invent(made_up)
    else:
        with np.load(path) as file:
            images = torch.from_numpy(file["images"])
            labels = torch.from_numpy(file["labels"]).long()
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        images = images.float() / scale
    held_out = max(1, len(labels) // 10)
    train = TensorDataset(images[:-held_out].contiguous(), labels[:-held_out])
    test = TensorDataset(images[-held_out:].contiguous(), labels[-held_out:])
    return train, test, int(labels.max()) + 1


def invent(count: int) -> tuple[Tensor, Tensor]:
    """Return noisy, dimmed copies of ten coarse pictures: learnable, and nothing to download."""
    source = torch.Generator().manual_seed(20_260_101)
    coarse = torch.rand(10, 3, 4, 4, generator=source)
    pictures = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)
    labels = torch.randint(10, (count,), generator=source)
    light = torch.rand(count, 1, 1, 1, generator=source) * 0.5
    images = light * pictures[labels] + torch.rand(count, 3, 32, 32, generator=source)
    return images, labels


class Order(Sampler[int]):
    """The order of an epoch, a function of seed and epoch alone, from any position on."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.size, generator=source).tolist()
        return iter(order[self.position :])

    def __len__(self) -> int:
        return self.size - self.position


def augmented(images: Tensor) -> Tensor:
    """Mirror each image by chance, and move the batch by up to two pixels."""
    flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    images = torch.where(flipped, images.flip(3), images)
    return images.roll((random.randint(-2, 2), random.randint(-2, 2)), dims=(2, 3))


# --- model -----------------------------------------------------------------------------------


def network(channels: int, width: int, classes: int) -> nn.Module:
    """Return three convolution blocks and a linear layer."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(channels, width),
        *block(width, 2 * width),
        *block(2 * width, 4 * width),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.LazyLinear(classes),
    )


def precision_for(device: torch.device) -> str:
    """Return FREEGPU_PRECISION, or what the device does well."""
    wanted = os.environ.get("FREEGPU_PRECISION", "")
    if device.type == "cpu":
        return "bf16" if wanted == "bf16" else "fp32"
    if wanted in DTYPES:
        return wanted
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


# --- checkpoints -----------------------------------------------------------------------------


def random_states() -> dict[str, Any]:
    """Return the state of every generator that the run draws from."""
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the generators; cards that were not there before keep their own."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        for card, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, card)


def save(path: Path, content: Any) -> None:
    """Replace the file at once or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Stop:
    """Remembers that a signal asked the run to stop."""

    def __init__(self) -> None:
        self.signal = 0
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number


# --- the run ---------------------------------------------------------------------------------


class Run:
    """A training and everything that its next step depends on."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.precision = precision_for(self.device)
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)

        self.train, self.test, classes = load(args.data, args.images)
        self.model = network(self.train[0][0].shape[0], args.width, classes)
        self.model(self.train[0][0][None])  # gives the lazy layer its size
        self.model.to(self.device)
        self.order = Order(len(self.train), args.seed)
        self.steps_an_epoch = -(-len(self.train) // args.batch_size)
        self.total = args.epochs * self.steps_an_epoch
        self.step = 0
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=args.lr, total_steps=self.total + 1
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "identity": self.identity(),
            "step": self.step,
            "epoch": self.order.epoch,
            "position": self.order.position,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_states(),
        }

    def identity(self) -> dict[str, Any]:
        """Return the settings without which a checkpoint means nothing."""
        named = ("epochs", "batch_size", "lr", "width", "seed")
        return {**{name: getattr(self.args, name) for name in named}, "images": len(self.train)}

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint, made on this card or another."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["identity"] != self.identity():
            sys.exit(f"{path} is of another run: {state['identity']}, not {self.identity()}")
        self.step = state["step"]
        self.order.epoch, self.order.position = state["epoch"], state["position"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if state["scaler"]:  # empty when the card before needed none
            self.scaler.load_state_dict(state["scaler"])
        restore_random_states(state["random"])

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches that this epoch still has."""
        loader = DataLoader(
            self.train,
            self.args.batch_size,
            sampler=self.order,
            pin_memory=self.device.type == "cuda",
            # A loader draws a seed when it starts. From a generator of its own: starting it once
            # more, after a resume, must not move the one that the training draws from.
            generator=torch.Generator().manual_seed(0),
        )
        for images, labels in loader:
            yield (
                images.to(self.device, non_blocking=True),
                labels.to(self.device, non_blocking=True),
            )

    def advance(self, images: Tensor, labels: Tensor) -> Tensor:
        """Do one step and return its loss."""
        self.model.train()
        images = augmented(images)
        with torch.autocast(
            self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32"
        ):
            loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:  # otherwise the step overflowed and was left out
            self.schedule.step()
        self.step += 1
        self.order.position += len(labels)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Return mean loss and accuracy on the held-out images."""
        self.model.eval()
        loss, correct = 0.0, 0
        for images, labels in DataLoader(self.test, 512):
            scores = self.model(images.to(self.device)).float().cpu()
            loss += float(F.cross_entropy(scores, labels, reduction="sum"))
            correct += int((scores.argmax(1) == labels).sum())
        return loss / len(self.test), correct / len(self.test)


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


def folder(variable: str, default: str) -> Path:
    """Return the folder that freegpu names, or the default."""
    path = Path(os.environ.get(variable) or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def main() -> int:
    """Train, or continue to; return the exit code."""
    stop = Stop()
    args = arguments()
    checkpoint = folder("FREEGPU_CHECKPOINT_DIR", "ckpt") / "state.pt"
    outputs = folder("FREEGPU_OUTPUT_DIR", "out")
    run = Run(args)
    if checkpoint.exists():
        run.restore(checkpoint)
        say(f"resumed at step {run.step} of {run.total}")
    say(f"{len(run.train)} images, {run.device.type}, {run.precision}")

    saved_at = told_at = time.monotonic()
    for epoch in range(run.order.epoch, args.epochs):
        run.order.epoch = epoch
        for images, labels in run.batches():
            loss = run.advance(images, labels)
            now = time.monotonic()
            if stop.signal and run.step < run.total:
                save(checkpoint, run.state())
                say(f"stopped by signal {stop.signal}: saved at step {run.step}")
                return SAVED_AND_RESUMABLE
            if now - saved_at >= args.save_every:
                save(checkpoint, run.state())
                saved_at = now
            if now - told_at >= 1.0:
                told_at = now
                report = {"step": run.step, "total": run.total, "loss": round(loss.item(), 4)}
                say("FREEGPU_PROGRESS " + json.dumps(report))
        run.order.position = 0

    test_loss, accuracy = run.evaluate()
    save(
        outputs / "model.pt", {name: value.cpu() for name, value in run.model.state_dict().items()}
    )
    metrics = {"accuracy": accuracy, "loss": test_loss, "epochs": args.epochs, "seed": args.seed}
    (outputs / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="ascii")
    say("FREEGPU_PROGRESS " + json.dumps({"step": run.step, "total": run.total, "loss": test_loss}))
    say(f"done: accuracy {accuracy:.1%} on {len(run.test)} held-out images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
