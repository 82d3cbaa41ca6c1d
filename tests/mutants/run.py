#!/usr/bin/env python3
"""Plants each fault of a list in a copy of the tree and demands that its test fails.

    run.py [LIST.txt] [WORD]      list.txt; only faults whose name contains WORD

The copy is made of what git tracks, in build-mutants/, and built once; each fault then costs a
rebuild of its file. Last line: "N passed, N failed, N skipped" (a fault that lives has failed).
"""
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPY = os.path.join(ROOT, "build-mutants")
LIMIT_S = 600


def read_list(path):
    fault = None
    for raw in open(path, encoding="utf-8"):
        line = raw.rstrip("\n")
        if line.startswith("== "):
            if fault:
                yield fault
            fault = {"name": line[3:], "old": [], "new": []}
        elif not line or line.startswith("#"):
            continue
        elif line.startswith("< "):
            fault["old"].append(line[2:])
        elif line.startswith("> "):
            fault["new"].append(line[2:])
        elif line.startswith("! "):
            fault["run"] = line[2:]
        else:
            fault["file"] = line
    yield fault


def shell(command):
    """True when the command passed; a time-out counts as a failure of the command."""
    try:
        return subprocess.run(command, shell=True, cwd=COPY, timeout=LIMIT_S,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def copy_tree():
    shutil.rmtree(COPY, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE).stdout.decode().split("\0")
    for name in filter(None, files):
        to = os.path.join(COPY, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, name), to)


def plant(fault):
    """Returns the file's own text, or None when the fault no longer fits the source."""
    path = os.path.join(COPY, fault["file"])
    text = open(path, encoding="utf-8").read()
    old, new = "\n".join(fault["old"]), "\n".join(fault["new"])
    if text.count(old) != 1:
        return None
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new))
    return text


def main():
    args = sys.argv[1:]
    name = args.pop(0) if args and args[0].endswith(".txt") else "list.txt"
    word = args[0] if args else ""
    faults = [f for f in read_list(os.path.join(ROOT, "tests/mutants", name))
              if word in f["name"]]
    copy_tree()
    killed = lived = 0
    sound = {}
    for fault in faults:
        if fault["run"] not in sound:
            sound[fault["run"]] = shell(fault["run"])
        text = plant(fault) if sound[fault["run"]] else None
        if text is None:
            verdict = "FAILS WITHOUT IT" if not sound[fault["run"]] else "DOES NOT FIT"
            lived += 1
        else:
            passed = shell(fault["run"])
            builds = not passed and shell("make -s all")
            verdict = "LIVES" if passed else "killed" if builds else "DOES NOT BUILD"
            killed += verdict == "killed"
            lived += verdict != "killed"
            with open(os.path.join(COPY, fault["file"]), "w", encoding="utf-8") as f:
                f.write(text)
        print(f"{verdict:16} {fault['name']}", flush=True)
    print(f"{killed} passed, {lived} failed, 0 skipped")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
