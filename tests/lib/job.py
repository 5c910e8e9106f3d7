"""job.py - real processes in tests: start them in any order, read their lines, end them by pid.

Every wait has a limit and waits for an event (a line, an end), never for time to pass; one that
passes its limit fails the test and shows what all processes have said. Every process, and whatever it
starts, carries a mark in its environment, by which left_over finds it wherever it went.

    with Job(workers=2, servers=1, env={"TALLY_DEATH_LIMIT_MS": "1000"}) as job:
        job.start_scheduler()
        job.start_server()
        ranks = [job.start_worker(rank, [program("tests/proc/hello")]) for rank in range(2)]
        ranks[0].wait_line(r"step (\\d+)")
        ranks[1].kill()
        assert job.wait_all(10) == {"scheduler": 1, "server 0": 1, "worker 0": 3, "worker 1": -9}

Threads: a Process has one thread per output and one that waits for its end; a test uses its objects
from its own thread only.
"""
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TALLY_BUILD", "build/release"))
MARK = "JOB_TEST_MARK"           # not a TALLY_ name: the roles warn of unknown ones
LIMIT_S = 20                     # for what takes milliseconds on a machine that is not overloaded

SETTING_PREFIXES = ("DMLC_", "BYTEPS_", "TALLY_")


def program(name):
    """The path of something that make has built; a test without it fails and says so."""
    path = os.path.join(BUILD, name)
    assert os.access(path, os.X_OK), "%s is not there: run make, or set TALLY_BUILD" % path
    return path


def free_port():
    """A port that nobody listens on now. For a job whose scheduler is not the first to start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---------------------------------------------------------------------------------------------------
# Processes found by their mark

def marked(mark):
    """The pids of all live processes with this mark."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/environ" % entry, "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                pass             # ended meanwhile, or another user's
    return found


def wait_pid_gone(pid, limit_s):
    """True: the process has ended (it may not be reaped yet)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(max(0, limit_s) * 1000))
    finally:
        os.close(fd)


def left_over(mark, limit_s):
    """What is still alive of this mark after limit_s, as "pid command line"."""
    deadline = time.monotonic() + limit_s
    pids = marked(mark)
    while pids and all(wait_pid_gone(pid, deadline - time.monotonic()) for pid in pids):
        pids = marked(mark)      # they may have started others
    return [describe(pid) for pid in marked(mark)]


def describe(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = "?"
    return "%d %s" % (pid, words[:200])


def kill_marked(mark):
    pids = marked(mark)
    while pids:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in pids:
            wait_pid_gone(pid, LIMIT_S)
        pids = marked(mark)


# ---------------------------------------------------------------------------------------------------
# One process

class Process:
    """A process in a session of its own, whose two outputs are kept line by line.

    status: None while it runs, then as subprocess says it: negative is a signal's number.
    stdout, stderr: a descriptor takes the place of the kept output.
    """

    def __init__(self, name, command, env, cwd=None, stdin=subprocess.DEVNULL, stdout=None, stderr=None,
                 preexec_fn=None):
        self.name = name
        self.status = None
        self.lines = []          # (stream name, bytes with their newline), in order of arrival
        self.changed = threading.Condition()     # guards lines, status and open_streams
        self.popen = subprocess.Popen(command, env=env, cwd=cwd, stdin=stdin,
                                      stdout=subprocess.PIPE if stdout is None else stdout,
                                      stderr=subprocess.PIPE if stderr is None else stderr,
                                      start_new_session=True, preexec_fn=preexec_fn)
        self.pid = self.popen.pid
        files = [("stdout", self.popen.stdout), ("stderr", self.popen.stderr)]
        self.open_streams = sum(1 for _, file in files if file)
        self.threads = [threading.Thread(target=self._read, args=pair, daemon=True)
                        for pair in files if pair[1]]
        self.threads.append(threading.Thread(target=self._reap, daemon=True))
        for thread in self.threads:
            thread.start()

    def _read(self, stream, file):
        for line in file:
            with self.changed:
                self.lines.append((stream, line))
                self.changed.notify_all()
        file.close()
        with self.changed:
            self.open_streams -= 1
            self.changed.notify_all()

    def _reap(self):
        status = self.popen.wait()
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def wait_line(self, pattern, limit_s=LIMIT_S, stream=None, start=0):
        """The match of the first line, from line number start on, in which pattern is found."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                for kind, line in self.lines[start:]:
                    match = re.search(pattern, line.decode(errors="replace").rstrip("\n"))
                    if match and stream in (None, kind):
                        return match
                start = len(self.lines)
                left = deadline - time.monotonic()
                assert self.open_streams, "%s ended without a line %r\n%s" % (self.name, pattern, self)
                assert left > 0, "%s said no %r in %g s\n%s" % (self.name, pattern, limit_s, self)
                self.changed.wait(left)

    def ends_within(self, limit_s):
        with self.changed:
            return self.changed.wait_for(lambda: self.status is not None, limit_s)

    def wait(self, limit_s=LIMIT_S):
        """The exit status, when all of the output has been read too."""
        deadline = time.monotonic() + limit_s
        assert self.ends_within(limit_s), "%s runs on after %g s\n%s" % (self.name, limit_s, self)
        with self.changed:
            closed = self.changed.wait_for(lambda: not self.open_streams,
                                           max(1, deadline - time.monotonic()))
        assert closed, "%s has ended, but something holds its output open\n%s" % (self.name, self)
        return self.status

    def signal(self, number):
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass    # it has just ended, and its status is on the way

    def kill(self):
        self.signal(signal.SIGKILL)

    def output(self, stream):
        """All bytes of "stdout" or "stderr" so far."""
        with self.changed:
            return b"".join(line for kind, line in self.lines if kind == stream)

    def text(self, stream):
        return self.output(stream).decode(errors="replace")

    def __str__(self):
        """For a failure's message: how it stands and what it has said."""
        shown = [line.decode(errors="replace").rstrip("\n")[:300] for _, line in self.lines[-60:]]
        return "\n".join(["-- %s (pid %d), status %s" % (self.name, self.pid, self.status)] + shown)


# ---------------------------------------------------------------------------------------------------
# One job

class Job:
    """The processes of one job; see the top. As a context manager it fails the test when something is
    left at the end, and leaves nothing itself.

    port: of the scheduler. None lets the scheduler choose one, if it starts first.
    env:  settings for all roles; the caller's own DMLC_, BYTEPS_ and TALLY_ settings are not passed on.
    """

    def __init__(self, workers=1, servers=1, env=None, port=None):
        self.workers = workers
        self.servers = servers
        self.env = dict(env or {})
        self.port = port
        self.mark = uuid.uuid4().hex
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        left = [] if kind else left_over(self.mark, 2)
        self.close()
        assert not left, "left behind: %s\n%s" % (left, self)

    def environment(self, role=None, env=None):
        """What a process of this role gets; env wins, and None there takes a name away."""
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(SETTING_PREFIXES)}
        result[MARK] = self.mark
        if role:
            if self.port is None:
                self.port = free_port()
            result.update(DMLC_ROLE=role, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(self.port),
                          DMLC_NUM_WORKER=str(self.workers), DMLC_NUM_SERVER=str(self.servers),
                          DMLC_NODE_HOST="127.0.0.1")
        for name, value in list(self.env.items()) + list((env or {}).items()):
            result[name] = value
        return {name: value for name, value in result.items() if value is not None}

    def start(self, name, command, env=None, role=None, **keywords):
        """Any process, with this job's mark; with the role's settings if one is given."""
        process = Process(name, command, self.environment(role, env), **keywords)
        self.processes.append(process)
        return process

    def start_scheduler(self, env=None, command=None):
        """With no port yet, it chooses one and this waits until it has said which."""
        chooses = self.port is None
        if chooses:
            self.port = 0
        scheduler = self.start("scheduler", command or [program("tally-scheduler")], env, "scheduler")
        if chooses:
            said = scheduler.wait_line(r"tally-scheduler listening on \S+:(\d+)\s*$", stream="stdout")
            self.port = int(said.group(1))
        return scheduler

    def start_server(self, env=None, command=None):
        number = sum(1 for process in self.processes if process.name.startswith("server "))
        return self.start("server %d" % number, command or [program("tally-server")], env, "server")

    def start_worker(self, rank, command, env=None):
        return self.start("worker %d" % rank, command, dict({"DMLC_WORKER_ID": str(rank)}, **(env or {})),
                          "worker")

    def wait_all(self, limit_s=LIMIT_S):
        """All exit statuses by name, when every process has ended; of one name the last started."""
        deadline = time.monotonic() + limit_s
        for process in self.processes:
            if not process.ends_within(max(0, deadline - time.monotonic())):
                raise AssertionError("%s runs on after %g s\n%s" % (process.name, limit_s, self))
        return {process.name: process.wait() for process in self.processes}

    def assert_nothing_left(self, limit_s=5):
        left = left_over(self.mark, limit_s)
        assert not left, "left behind: %s\n%s" % (left, self)

    def close(self):
        """End what still runs. Safe to call again."""
        kill_marked(self.mark)
        for process in self.processes:
            process.ends_within(LIMIT_S)
            for thread in process.threads:
                thread.join(LIMIT_S)

    def __str__(self):
        return "\n".join(str(process) for process in self.processes)
