#!/usr/bin/env python3
"""Make smollm2_tokenizer.jsonl and ../models/smollm2-vocab/smollm2-vocab.gguf.

    python3 tests/golden/smollm2_tokenizer.py SmolLM2-135M-Instruct.Q4_1.gguf

The GGUF written is the model's metadata without tensors (Apache-2.0, HuggingFaceTB). The
vectors come from PyPI's tokenizers, given the GGUF's vocabulary and merges and the stages
of the model's own tokenizer.json: Digits(individual), then ByteLevel(use_regex). (Not from
transformers' GGUF import, which leaves Digits out.) Needs gguf and tokenizers; run from
the repository root. Lines are as in the models' golden/tokenizer.jsonl.
"""
import json, os, sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

TEXTS = "tests/models/tiny-llama/golden/tokenizer.jsonl"
MODEL = "tests/models/smollm2-vocab/smollm2-vocab.gguf"
OUT = "tests/golden/smollm2_tokenizer.jsonl"
MORE = ["\u00c0\u00ff \u0100", "\u07ff\ue000\uffff", "\U0003fffd \U000f0000 \U0010fffd",
        "x = [1, 22, 333, 4444]  # 5e-6\n", "1 2\t3\n4", "a1b22c333", "\u0661\u0662 \u216b\u00bd",
        "12\u0301", " 7", "  7", "7  ", "\n7\n", "<|im_start|", "<|IM_START|>", "'\u017f 'S 's"]


def write_vocab(reader):
    os.makedirs(os.path.dirname(MODEL), exist_ok=True)
    out = GGUFWriter(MODEL, "llama")
    for key, field in reader.fields.items():
        if not key.startswith(("tokenizer.", "general.license", "general.name")):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        out.add_key_value(key, field.contents(), kind, sub)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()


def main():
    reader = GGUFReader(sys.argv[1])
    get = lambda name: reader.fields["tokenizer.ggml." + name].contents()
    tokens, kinds = get("tokens"), get("token_type")
    write_vocab(reader)

    def make(added):
        t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)},
                                 [tuple(m.split(" ")) for m in get("merges")]))
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
        t.add_special_tokens([AddedToken(s, normalized=False) for s in added])
        return t

    control = [s for s, k in zip(tokens, kinds) if k == 3]
    plain, special = make([]), make(control)
    rows = [json.loads(line) for line in open(TEXTS, newline="\n") if line]
    texts = [r["text"] for r in rows if not r["special"]] + MORE
    marked = [f(s) for s in control for f in (str, "a{}b".format, "a {} b".format,
                                              "7{0}{0}\n".format)]
    with open(OUT, "w", newline="\n") as f:
        for text, tok, flag in ([(t, plain, False) for t in texts + marked] +
                                [(t, special, True) for t in texts[::9] + marked]):
            ids = tok.encode(text, add_special_tokens=False).ids
            f.write(json.dumps({"text": text, "special": flag, "ids": ids},
                               ensure_ascii=False, separators=(",", ":")) + "\n")


main()
