#!/usr/bin/env python3
"""Golden files of SmolLM2-135M-Instruct (Q4_1): what Hugging Face transformers computes in fp32
from the same GGUF, dequantised. Run by hand (torch 2.13.0, transformers 5.23.0, gguf,
accelerate, safetensors):

    python tests/golden/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf tests/golden/smollm2
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Q: What is 12 + 30?\nA:",
    "In 1969, Neil Armstrong",
    "To make a cup of tea, first",
    "The Moon is",
    "A list of fruits:\n- apple\n-",
    "The quick brown fox",
    "Photosynthesis is the process by which",
    "import numpy as np\n\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "The largest planet of the solar system is",
    "1, 1, 2, 3, 5, 8,",
]
CHATS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three animals.",
    "Why is the sky blue?",
]
STEPS = 64
LOGIT_ROWS = 6


def main(gguf, out):
    torch.set_num_threads(1)
    where, name = os.path.split(os.path.abspath(gguf))
    tok = AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [tok(p, add_special_tokens=False).input_ids for p in PROMPTS]
    for text in CHATS:
        chat = tok.apply_chat_template([{"role": "user", "content": text}], tokenize=False,
                                       add_generation_prompt=True)
        prompts.append(tok(chat, add_special_tokens=False).input_ids)
    greedy, tensors = [], {}
    with torch.no_grad():
        for i, ids in enumerate(prompts):
            item = {"prompt_ids": ids, "ids": [], "gap": []}
            past, step = None, torch.tensor([ids])
            for _ in range(STEPS):
                r = model(step, past_key_values=past, use_cache=True)
                past = r.past_key_values
                best = torch.topk(r.logits[0, -1].double(), 2)
                item["ids"].append(int(best.indices[0]))
                item["gap"].append(round(float(best.values[0] - best.values[1]), 6))
                step = best.indices[:1][None]
            item["text"] = tok.decode(item["ids"])
            greedy.append(item)
            print(i, repr(item["text"][:70]), flush=True)
        for i in range(LOGIT_ROWS):
            ids = greedy[i]["prompt_ids"] + greedy[i]["ids"][:5 * i]
            logits = model(torch.tensor([ids])).logits[0, -1:]
            tensors[f"p{i}.ids"] = torch.tensor(ids, dtype=torch.int32)
            tensors[f"p{i}.pos"] = torch.tensor([len(ids) - 1], dtype=torch.int32)
            tensors[f"p{i}.logits"] = logits.contiguous()
            tensors[f"p{i}.spread"] = torch.zeros(1)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "greedy.json"), "w") as f:
        json.dump(greedy, f)
        f.write("\n")
    save_file(tensors, os.path.join(out, "logits.safetensors"))


main(*sys.argv[1:])
