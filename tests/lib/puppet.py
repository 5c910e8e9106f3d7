"""puppet.py - a worker whose calls a test makes one by one: tests/proc/puppet.c, told what to do over
its standard input.

    zero, one = Puppet(job, 0), Puppet(job, 1)
    start_all(zero, one)
    for puppet in (zero, one):
        puppet.declare(0, "grad")
        puppet.push(0, 0, 3)
    assert zero.wait(0) == "TALLY_OK"
    assert zero.value(0) == "6"
"""
import re
import subprocess

from job import LIMIT_S, program


class Puppet:
    def __init__(self, job, rank, env=None, role="worker"):
        settings = dict({"DMLC_WORKER_ID": str(rank)} if role else {}, **(env or {}))
        self.process = job.start("worker %d" % rank, [program("tests/proc/puppet")], settings, role,
                                 stdin=subprocess.PIPE)

    def say(self, *words):
        """Make a call and do not wait for its end. Gives what reply needs."""
        start = len(self.process.lines)
        self.process.popen.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.popen.stdin.flush()
        return words[0], start

    def reply(self, said, limit_s=LIMIT_S):
        """What the call answered: "STATUS" or "STATUS sentence"."""
        call, start = said
        return self.process.wait_line(r"^%s\b ?(.*)$" % call, limit_s, "stdout", start).group(1).strip()

    def ask(self, *words, limit_s=LIMIT_S):
        return self.reply(self.say(*words), limit_s)

    def line(self, pattern, limit_s=LIMIT_S):
        """The first line of its whole output so far, or to come, with this pattern."""
        return self.process.wait_line(pattern, limit_s, "stdout")

    def log_line(self, pattern, limit_s=LIMIT_S):
        return self.process.wait_line(pattern, limit_s, "stderr")

    # The calls of tally.h, on context 0.

    def open(self, limit_s=LIMIT_S):
        return self.ask("open", 0, limit_s=limit_s)

    def close(self, limit_s=LIMIT_S):
        return self.ask("close", 0, limit_s=limit_s)

    def declare(self, tensor, name, dtype="float32", count=1000, op="sum", priority=0):
        return self.ask("declare", 0, tensor, name, dtype, count, op, priority)

    def push(self, tensor, request, value, *priority):
        return self.ask("push", tensor, request, value, *priority)

    def broadcast(self, tensor, request, root, value):
        return self.ask("broadcast", tensor, request, root, value)

    def wait(self, request, timeout_ms=-1, limit_s=LIMIT_S):
        return self.ask("wait", request, timeout_ms, limit_s=limit_s)

    def barrier(self, timeout_ms=-1):
        return self.ask("barrier", 0, timeout_ms)

    def value(self, tensor):
        return self.ask("value", tensor)

    def finish(self, limit_s=LIMIT_S):
        """End its input, and with it the program. Gives the exit status."""
        self.process.popen.stdin.close()
        return self.process.wait(limit_s)


def start_all(*puppets):
    """Open a context in each; they wait for each other. Fails unless all join."""
    said = [puppet.say("open", 0) for puppet in puppets]
    for puppet, call in zip(puppets, said):
        answer = puppet.reply(call)
        assert answer.startswith("TALLY_OK"), answer


def close_all(*puppets):
    """Close context 0 of each and end them."""
    said = [puppet.say("close", 0) for puppet in puppets]
    for puppet, call in zip(puppets, said):
        assert puppet.reply(call) == "TALLY_OK"
    for puppet in puppets:
        assert puppet.finish() == 0


def sentence(answer):
    """("TALLY_EFAILED", "the sentence")"""
    match = re.match(r"(TALLY_\w+) ?(.*)", answer)
    return match.group(1), match.group(2)
