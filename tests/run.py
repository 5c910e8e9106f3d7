#!/usr/bin/env python3
"""Build and run all tests, and count them.

Stages run one after the other; each test program is one row of the output. The last line is
"N passed, N failed", and the exit status is 1 if anything failed. A stage whose program ends in
an unexpected way, or that ran no test, counts as a failure.
"""

import argparse
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIM_SEEDS = 20000
SIM_SEEDS_SANITIZED = 1000


class Stage:
    """Commands of one build flavour, and how their output is counted."""

    def __init__(self, name, make_args, build, unit=True, sim_seeds=0, proc=(), env=None):
        self.name = name
        self.make_args = make_args
        self.build = os.path.join(ROOT, "build", build)
        self.unit = unit
        self.sim_seeds = sim_seeds
        self.proc = proc
        self.env = dict(os.environ, TALLY_BUILD=self.build, **(env or {}))


# ThreadSanitizer does not know what libzmq does (it is not instrumented), and libzmq has a small leak of its
# own: see tests/data/tsan.supp and lsan.supp.
STAGES = [
    Stage("release", [], "release", sim_seeds=SIM_SEEDS, proc=["tests/proc"]),
    Stage("address, undefined", ["SAN=address"], "address", sim_seeds=SIM_SEEDS_SANITIZED,
          proc=["tests/proc", "-m", "sanitize"],
          env={"ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1",
               "LSAN_OPTIONS": "print_suppressions=0:suppressions=" + os.path.join(ROOT, "tests/data/lsan.supp")}),
    Stage("thread", ["SAN=thread"], "thread", proc=["tests/proc", "-m", "sanitize"],
          env={"TSAN_OPTIONS": "halt_on_error=1:suppressions=" + os.path.join(ROOT, "tests/data/tsan.supp")}),
]


class Counter:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def add(self, label, passed, failed, seconds, output):
        self.passed += passed
        self.failed += failed
        print(f"  {label:<58} {passed:5} passed {failed:3} failed {seconds:7.1f} s", flush=True)
        if failed:
            sys.stdout.write(output[-12000:])
            sys.stdout.flush()


def run(command, env, limit):
    start = time.monotonic()
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit, check=False)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = -1, (error.stdout or b"") + f"\nno end within {limit} s\n".encode()
    return status, output.decode(errors="replace"), time.monotonic() - start


def unit_tests(stage, counter):
    directory = os.path.join(stage.build, "tests", "unit")
    sources = sorted(os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(ROOT, "tests", "unit"))
                     for name in names if name.startswith("test_") and name.endswith(".c"))
    for source in sources:
        relative = os.path.relpath(source, os.path.join(ROOT, "tests", "unit"))[:-2]
        status, output, seconds = run([os.path.join(directory, relative)], stage.env, 300)
        passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) test", output)))
        failed = sum(map(int, re.findall(r"\[  FAILED  \] (\d+) test", output)))
        if (status != 0 or passed == 0) and failed == 0:
            failed = 1
        counter.add("unit/" + relative, passed, failed, seconds, output)


def simulation(stage, counter):
    command = [os.path.join(stage.build, "tests", "sim", "sim"), "--seeds", str(stage.sim_seeds)]
    status, output, seconds = run(command, stage.env, 900)
    good = status == 0
    counter.add(f"sim, {stage.sim_seeds} seeds", int(good), int(not good), seconds, output)


def single(label, command, stage, counter, limit=300):
    """A program whose exit status is its only result."""
    status, output, seconds = run(command, stage.env, limit)
    counter.add(label, int(status == 0), int(status != 0), seconds, output)


def fuzz_replays(stage, counter):
    """What the fuzzers have found interesting, once."""
    corpus = os.path.join(ROOT, "tests", "fuzz", "corpus")
    for name in sorted(os.listdir(corpus)):
        single("fuzz corpus/" + name, [os.path.join(stage.build, "tests", "fuzz", "replay_" + name),
                                       os.path.join(corpus, name)], stage, counter)


def process_tests(stage, counter):
    # Debian's python3 has Debian's pytest, whatever python3 is first in PATH.
    command = ["/usr/bin/python3", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *stage.proc]
    status, output, seconds = run(command, stage.env, 1200)
    passed = sum(map(int, re.findall(r"(\d+) passed", output)))
    failed = sum(map(int, re.findall(r"(\d+) (?:failed|error)", output)))
    if (status != 0 or passed == 0) and failed == 0:
        failed = 1
    counter.add("processes", passed, failed, seconds, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", default="make", help="the make to build with")
    parser.add_argument("--stage", help="only the stage whose name begins with this")
    arguments = parser.parse_args()
    counter = Counter()
    for stage in STAGES:
        if arguments.stage and not stage.name.startswith(arguments.stage):
            continue
        print(f"{stage.name}: building", flush=True)
        jobs = str(os.cpu_count() or 1)
        status, output, seconds = run([arguments.make, "-j", jobs, *stage.make_args, "all", "test-programs",
                                       "fuzz-replays"],
                                      dict(os.environ), 1200)
        counter.add("build", int(status == 0), int(status != 0), seconds, output)
        if status != 0:
            continue
        unit_tests(stage, counter)
        fuzz_replays(stage, counter)
        if not stage.make_args:
            single("README's table of settings is up to date",
                   [os.path.join(ROOT, "scripts", "readme-table"), "--check",
                    os.path.join(stage.build, "tally-scheduler"), "README.md"], stage, counter)
        if stage.sim_seeds:
            simulation(stage, counter)
        if stage.proc:
            process_tests(stage, counter)
    print(f"{counter.passed} passed, {counter.failed} failed")
    return 1 if counter.failed else 0


if __name__ == "__main__":
    sys.exit(main())
