"""Fine-tune a causal language model with LoRA and the Transformers Trainer, stoppable anywhere.

Without --model it trains a tiny random Llama on additions written out in bytes, so that it runs
offline and in seconds. With --model NAME --text FILE it fine-tunes that model on that text.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

if not any(word.startswith("--model") for word in sys.argv):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing to look up

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

SAVED_AND_RESUMABLE = 75
BYTES = 256
NEEDED = (
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
)  # beside the adapter and trainer_state.json


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", help="a name on the Hub or a folder; default: a tiny random Llama"
    )
    parser.add_argument("--text", type=Path, help="text to learn; default: made-up additions")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="tokens in an example")
    parser.add_argument("--lr", type=float, default=float(os.environ.get("LR", "0.003")))
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    parser.add_argument("--save-steps", type=int, default=50)
    return parser.parse_args()


# --- model and data --------------------------------------------------------------------------


def precision() -> str:
    """Return FREEGPU_PRECISION, or what the device does well; a processor trains in fp32."""
    if not torch.cuda.is_available():
        return "fp32"
    wanted = os.environ.get("FREEGPU_PRECISION", "")
    if wanted in ("bf16", "fp16", "fp32"):
        return wanted
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def base_model(args: argparse.Namespace, kind: str) -> Any:
    """Return the frozen model under the adapter."""
    if args.model is None:
        config = LlamaConfig(
            vocab_size=BYTES,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=max(128, args.length),
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
        return LlamaForCausalLM(config)  # random, but the same for the same seed
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[kind]
    return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)


def tokens(args: argparse.Namespace) -> list[int]:
    """Return the text as one row of tokens."""
    if args.text is None:
        dice = random.Random(20_260_101)
        pairs = [(dice.randrange(100), dice.randrange(100)) for _ in range(6000)]
        text = "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)
    else:
        text = args.text.read_text(encoding="utf-8")
    if args.model is None or args.text is None:
        return list(text.encode())
    return list(AutoTokenizer.from_pretrained(args.model)(text)["input_ids"])


class Pieces(Dataset[dict[str, torch.Tensor]]):
    """The row of tokens, cut into examples of one length."""

    def __init__(self, row: list[int], length: int) -> None:
        count = len(row) // length
        self.examples = torch.tensor(row[: count * length]).view(count, length)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.examples[index], "labels": self.examples[index]}


# --- stopping and resuming -------------------------------------------------------------------


def complete(folder: Path) -> bool:
    """Tell whether the Trainer finished writing this checkpoint.

    It writes trainer_state.json last, and in place: so the file must be there and be whole, and all
    that comes before it must be there too.
    """
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
        step = int(folder.name.rpartition("-")[2])
    except (OSError, ValueError):
        return False
    adapters = [folder / "adapter_model.safetensors", folder / "adapter_model.bin"]
    parts = [folder / name for name in NEEDED]
    return (
        state.get("global_step") == step
        and any(path.is_file() and path.stat().st_size for path in adapters)
        and all(path.is_file() and path.stat().st_size for path in parts)
    )


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint, and remove the torn ones.

    A torn one that stays would count when the Trainer keeps only the newest two.
    """
    whole: dict[int, Path] = {}
    for path in sorted(folder.glob("checkpoint-*")):
        if complete(path):
            whole[int(path.name.rpartition("-")[2])] = path
        else:
            print(f"{path.name} is not complete: removed", flush=True)
            shutil.rmtree(path)
    if not whole:
        return None
    newest = whole[max(whole)]
    os.utime(
        newest
    )  # the Trainer drops the oldest by time, and the clock that wrote it may be ahead
    return newest


class Freegpu(TrainerCallback):
    """Stops after the current step once SIGTERM has come, and prints progress lines."""

    def __init__(self) -> None:
        self.signal = 0
        self.told_at = time.monotonic()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop if asked to, and tell where the training is."""
        if self.signal and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True
        if time.monotonic() - self.told_at >= 1.0 or state.global_step == state.max_steps:
            self.told_at = time.monotonic()
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            report: dict[str, Any] = {"step": state.global_step, "total": state.max_steps}
            if losses:
                report["loss"] = losses[-1]
            print("FREEGPU_PROGRESS " + json.dumps(report), flush=True)


# --- the run ---------------------------------------------------------------------------------


def folder(variable: str, default: str) -> Path:
    """Return the folder that freegpu names, or the default."""
    path = Path(os.environ.get(variable) or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def main() -> int:
    """Train, or continue to; return the exit code."""
    freegpu = Freegpu()
    args = arguments()
    checkpoints = folder("FREEGPU_CHECKPOINT_DIR", "ckpt")
    outputs = folder("FREEGPU_OUTPUT_DIR", "out")
    kind = precision()
    set_seed(args.seed)

    row = tokens(args)
    held_out = max(args.length, len(row) // 20)
    lora = LoraConfig(
        r=args.rank,
        lora_alpha=2 * args.rank,
        lora_dropout=0.05,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    model: Any = get_peft_model(base_model(args, kind), lora)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(checkpoints),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            learning_rate=args.lr,
            lr_scheduler_type="cosine",
            warmup_steps=args.steps // 20,
            bf16=kind == "bf16",
            fp16=kind == "fp16",
            seed=args.seed,
            data_seed=args.seed,
            save_strategy="steps",
            save_steps=args.save_steps,
            save_total_limit=2,
            logging_steps=10,
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
            report_to="none",
        ),
        train_dataset=Pieces(row[:-held_out], args.length),
        eval_dataset=Pieces(row[-held_out:], args.length),
        callbacks=[freegpu],
    )

    base = last_complete_checkpoint(checkpoints)
    if base is not None:
        print(f"resuming from {base.name}", flush=True)
    trainer.train(resume_from_checkpoint=None if base is None else str(base))
    if trainer.state.global_step < args.steps:
        print(f"stopped: saved at step {trainer.state.global_step}", flush=True)
        return SAVED_AND_RESUMABLE

    loss = trainer.evaluate()["eval_loss"]
    model.save_pretrained(str(outputs / "adapter"))
    metrics = {"eval_loss": loss, "steps": args.steps, "seed": args.seed}
    (outputs / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="ascii")
    print(f"done: loss {loss:.4f} on held-out text", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
