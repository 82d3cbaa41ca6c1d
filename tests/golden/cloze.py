"""Makes tests/corpus/cloze.jsonl from tests/corpus/heldout.txt: from each stretch of prose a
question that asks for its last word, among four words of the same length class that occur in the
text (choices), and every third one freely (cloze). Deterministic; standard library only."""
import json
import random
import re

CONTEXT = 60  # words before the one that is asked for
QUESTIONS = 240

text = open("tests/corpus/heldout.txt", encoding="utf-8").read()
words = re.findall(r"\S+", text)
plain = [w for w in words if re.fullmatch(r"[a-z]{4,12}", w)]
often = sorted({w for w in plain if plain.count(w) >= 2})
pick = random.Random(1892)
out = []
places = [i for i in range(CONTEXT, len(words)) if words[i] in often]
step = len(places) / QUESTIONS
for q in range(QUESTIONS):
    i = places[int(q * step)]
    answer = words[i]
    context = " ".join(words[i - CONTEXT:i])
    if q % 3 == 2:
        out.append({"context": context, "answer": " " + answer})
        continue
    near = [w for w in often if abs(len(w) - len(answer)) <= 1 and w != answer]
    choices = pick.sample(near, 3)
    right = pick.randrange(4)
    choices.insert(right, answer)
    out.append({"context": context, "choices": [" " + c for c in choices], "answer": right})
with open("tests/corpus/cloze.jsonl", "w", encoding="utf-8") as f:
    for q in out:
        f.write(json.dumps(q, ensure_ascii=False) + "\n")
