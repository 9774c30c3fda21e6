"""`transformers.Trainer` within a budget: a callback that plans the model when training begins."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import remat.torch


class Plan(TrainerCallback):
    """Trains the model within a budget; the step is planned at the first batch, as it arrives."""

    def __init__(self, budget: str, **request: Any):
        self.backend = remat.torch.backend(budget, **request)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        model.compile(backend=self.backend, fullgraph=True, dynamic=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        print(*self.backend.reports, sep="\n")


def main(budget: str = "90%") -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=32, vocab_size=64, loss_type="ForCausalLM")
    )
    model.loss_type = "ForCausalLM"  # else the model logs a warning in its forward pass, which is then not one graph
    tokens = [torch.randint(0, 64, (32,)) for _ in range(8)]
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=3, report_to=[], save_strategy="no", use_cpu=True
        )
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Plan(budget, search_seconds=2)])
        print("loss", trainer.train().training_loss)


if __name__ == "__main__":
    main()
