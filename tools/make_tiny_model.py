"""Makes tests/tiny: a real llama-shaped model of 107,000 parameters, small enough for a repository.

Run it in the environment that `trimtab models build` prepares (it needs torch and transformers):

    ~/.cache/trimtab/build-env/bin/python tools/make_tiny_model.py --out /tmp/tiny
    cp -r /tmp/tiny/fp32 /tmp/tiny/int8 /tmp/tiny/int4 tests/tiny/
    TRIMTAB_MODELS=tests .venv/bin/trimtab models add tests/tiny --id tiny \\
        --name "tiny test model"

It trains a tokenizer and a model on text of our own (tiny_text.py and the evaluation text that
ships with the package; both under the project's licence) and builds the variants with
onnxruntime-genai's model builder. All variants share one tokenizer and one shape of KV cache.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tiny_text import END, END_OF_TEXT, START, streams
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
EVALUATION_TEXT = ROOT / "daemon/trimtab/catalog/data/evaluation.txt"
VOCABULARY = 512
CONTEXT = 2048
SEED = 20
RATE = 6e-3
VARIANTS = {"fp32": "fp32", "int8": "int8", "int4": "int4"}
# (sequence length, sequences in a batch, steps): short ones teach words, long ones positions.
STAGES = ((256, 24, 800), (1024, 6, 500), (CONTEXT, 3, 500))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every text can be written in it, rare characters byte by byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The untrained model. No layer may be as wide as the vocabulary: it'd pass for the head."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def sample(ids: list[torch.Tensor], length: int, batch: int) -> torch.Tensor:
    """Rows cut from within one stream each, (batch, length); three in ten from its beginning."""
    weights = torch.tensor([float(len(stream)) for stream in ids])
    rows = []
    for index in torch.multinomial(weights, batch, replacement=True).tolist():
        last = max(1, len(ids[index]) - length)
        start = 0 if torch.rand(()) < 0.3 else int(torch.randint(0, last, ()))
        rows.append(ids[index][start : start + length])
    return torch.stack(rows)


def train(model: LlamaForCausalLM, ids: list[torch.Tensor]) -> None:
    """Learn to predict the next token, over the stages, with a rate that warms up and fades."""
    total = sum(steps for _, _, steps in STAGES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 6e-3, total_steps=total, pct_start=0.05
    )
    step, begun = 0, time.perf_counter()
    for length, batch, steps in STAGES:
        for _ in range(steps):
            rows = sample(ids, length, batch)
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % 100 == 0:
                seconds = time.perf_counter() - begun
                print(
                    f"step {step} of {total}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True
                )


def build(source: Path, out: Path, precision: str) -> None:
    """One variant, by the engine's own builder."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        command += ["-i", str(source), "-o", str(out), "-p", precision, "-e", "cpu", "-c", cache]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the builder failed for {precision}:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="an empty or new folder")
    out = parser.parse_args().out
    torch.manual_seed(SEED)
    texts = streams(EVALUATION_TEXT.read_text(encoding="utf-8"), SEED)
    tokenizer = train_tokenizer(texts)
    ids = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    model = new_model(tokenizer)
    print(f"{model.num_parameters()} parameters, {sum(map(len, ids))} tokens of text")
    train(model, ids)
    source = out / "hf"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    for name, precision in VARIANTS.items():
        shutil.rmtree(out / name, ignore_errors=True)
        build(source, out / name, precision)
        size = sum(file.stat().st_size for file in (out / name).iterdir())
        print(f"{name}: {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
