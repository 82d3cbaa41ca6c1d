#!/usr/bin/env python3
"""Prints an OpenAI chat stream (curl -N ... | show_stream.py) as it arrives, and its speed."""
import json
import sys
import time

start = time.monotonic()
first = last = None
usage = {}
for line in sys.stdin:
    if not line.startswith("data: ") or line.strip() == "data: [DONE]":
        continue
    event = json.loads(line[6:])
    if event.get("error"):
        sys.exit("\nthe server says: " + event["error"]["message"])
    usage = event.get("usage") or usage
    for choice in event.get("choices", []):
        text = choice.get("delta", {}).get("content")
        if text:
            last = time.monotonic()
            first = first or last
            print(text, end="", flush=True)
print()
if first is None:
    sys.exit("no answer came")
n = usage.get("completion_tokens", 0)
if n > 1 and last > first:
    print(f"\n  {n} tokens: the first after {1000 * (first - start):.0f} ms, "
          f"then {(n - 1) / (last - first):.1f} tokens/s")
