#!/usr/bin/env python3
"""Make spm_tokenizer.jsonl and ../models/spm-vocab/spm-vocab.gguf.

    python3 tests/golden/spm_tokenizer.py TEXT.txt

Trains a small SentencePiece BPE model with the settings of Llama 2's (byte fallback,
digits apart, nothing normalised, a space put in front) on a plain text, stores it as llama
GGUFs do, and encodes with it. Where special tokens stand in a text, what lies between them
is encoded by itself, as llama.cpp does. Needs gguf and sentencepiece; run from the
repository root. Training is not the same on every version: both outputs belong together.
"""
import io, json, os, re, sys

import sentencepiece
from gguf import GGUFWriter

TEXTS = "tests/models/tiny-llama/golden/tokenizer.jsonl"
MODEL = "tests/models/spm-vocab/spm-vocab.gguf"
OUT = "tests/golden/spm_tokenizer.jsonl"
MORE = ["\u2581", "a\u2581b", " \u2581 ", "caf\u00e9\u0301", "<s>", "</s>x", "<0x0A>", "<unk>",
        "<|im_start|>user\nhi"]


def train(path):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=open(path, encoding="utf-8"), model_writer=out, model_type="bpe",
        vocab_size=1200, byte_fallback=True, split_digits=True, add_dummy_prefix=True,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
        allow_whitespace_only_pieces=True, character_coverage=0.9999,
        control_symbols=["<|im_start|>"], num_threads=1)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def kind_of(sp, i):
    if sp.is_byte(i):
        return 6
    return 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 1


def write_vocab(sp):
    os.makedirs(os.path.dirname(MODEL), exist_ok=True)
    n = range(sp.get_piece_size())
    out = GGUFWriter(MODEL, "llama")
    out.add_tokenizer_model("llama")
    out.add_token_list([sp.id_to_piece(i) for i in n])
    out.add_token_scores([sp.get_score(i) for i in n])
    out.add_token_types([kind_of(sp, i) for i in n])
    out.add_unk_token_id(sp.unk_id())
    out.add_bos_token_id(sp.bos_id())
    out.add_eos_token_id(sp.eos_id())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()


def encode(sp, text, special):
    if not special:
        return sp.encode(text)
    names = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())
             if kind_of(sp, i) in (2, 3)}
    ids = []
    for part in re.split("(" + "|".join(map(re.escape, names)) + ")", text):
        ids += [names[part]] if part in names else sp.encode(part)
    return ids


def main():
    sp = train(sys.argv[1])
    write_vocab(sp)
    rows = [json.loads(line) for line in open(TEXTS, newline="\n") if line]
    texts = [r["text"] for r in rows if not r["special"]] + MORE
    with open(OUT, "w", newline="\n") as f:
        for text in texts:
            for special in (False, True):
                if special and text not in MORE:
                    continue
                f.write(json.dumps({"text": text, "special": special,
                                    "ids": encode(sp, text, special)},
                                   ensure_ascii=False, separators=(",", ":")) + "\n")


main()
