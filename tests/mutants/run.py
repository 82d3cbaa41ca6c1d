#!/usr/bin/env python3
"""Plants each fault of a list in a copy of the tree and demands that its test fails.

    run.py [LIST.txt] [WORD]      list.txt; only faults whose name contains WORD

The copy is made of what git tracks, in build-mutants/, and keeps what it has built; each fault then
costs a rebuild of its file, by ccache where that is installed. Building takes as long as it takes; a
test that runs over LIMIT_S has failed. Last line: "N passed, N failed, N skipped" (a fault that lives
has failed).
"""
import os
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPY = os.path.join(ROOT, "build-mutants")
LIMIT_S = 600
ENV = os.environ | {"CCACHE_BASEDIR": COPY, "CCACHE_NOHASHDIR": "1"}
if "CC" not in ENV and shutil.which("ccache"):
    ENV["CC"] = "ccache cc"


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


def shell(command, limit=None):
    """True when the command passed. One that takes too long has failed, and all it started ends."""
    p = subprocess.Popen(command, shell=True, cwd=COPY, env=ENV, start_new_session=True,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return p.wait(limit) == 0
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        return False


def build(command):
    """What the command is going to make, without a limit of time."""
    first = command.split("&&")[0].strip()
    return shell(first if first.startswith("make ") else "make -s build/mascon")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def copy_tree():
    """Only what differs is written, so that make sees what it has to build."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE).stdout.decode().split("\0")
    names = {n for n in files if n and os.path.exists(os.path.join(ROOT, n))}
    for at, dirs, old in os.walk(COPY):
        dirs[:] = [d for d in dirs if os.path.join(at, d) != os.path.join(COPY, "build")]
        for n in old:
            if os.path.relpath(os.path.join(at, n), COPY) not in names:
                os.unlink(os.path.join(at, n))
    for name in names:
        to = os.path.join(COPY, name)
        if os.path.exists(to) and read(to) == read(os.path.join(ROOT, name)):
            continue
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, name), to)
        shutil.copymode(os.path.join(ROOT, name), to)


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


def judge(fault, sound):
    """A word; sound remembers which commands pass without a fault."""
    run = fault["run"]
    if run not in sound:
        sound[run] = build(run) and shell(run, LIMIT_S)
    if not sound[run]:
        return "FAILS WITHOUT IT"
    text = plant(fault)
    if text is None:
        return "DOES NOT FIT"
    verdict = "DOES NOT BUILD" if not build(run) else "LIVES" if shell(run, LIMIT_S) else "killed"
    with open(os.path.join(COPY, fault["file"]), "w", encoding="utf-8") as f:
        f.write(text)
    return verdict


def main():
    args = sys.argv[1:]
    name = args.pop(0) if args and args[0].endswith(".txt") else "list.txt"
    word = args[0] if args else ""
    faults = [f for f in read_list(os.path.join(ROOT, "tests/mutants", name))
              if word in f["name"]]
    copy_tree()
    killed, sound = 0, {}
    for fault in faults:
        verdict = judge(fault, sound)
        killed += verdict == "killed"
        print(f"{verdict:16} {fault['name']}", flush=True)
    print(f"{killed} passed, {len(faults) - killed} failed, 0 skipped")
    return 0 if killed == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
