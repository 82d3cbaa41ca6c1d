#!/usr/bin/env python3
"""ask.py URL QUESTION - asks a chat model, prints the answer as it streams, then its speed."""
import json
import sys
import time
import urllib.error
import urllib.request

url, question = sys.argv[1:3]
request = urllib.request.Request(
    url + "/v1/chat/completions", headers={"content-type": "application/json"},
    data=json.dumps({
        "model": "default", "stream": True, "temperature": 0, "max_tokens": 64,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": question}],
    }).encode())
start = time.monotonic()
first = last = None
usage = {}
try:
    answer = urllib.request.urlopen(request)
except urllib.error.HTTPError as e:
    sys.exit("the server says: " + json.load(e)["error"]["message"])
for line in answer:
    line = line.decode().strip()
    if not line.startswith("data: ") or line == "data: [DONE]":
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
if n:
    print(f"\n  {n} tokens: the first after {1000 * (first - start):.0f} ms, "
          f"all after {1000 * (last - start):.0f} ms", end="")
    # Tokens that a busy machine hands over in one piece would show no speed but the pipe's.
    print(f" ({(n - 1) / (last - first):.1f} tokens/s)" if last - first > 0.02 else "")
