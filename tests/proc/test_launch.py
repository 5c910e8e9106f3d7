"""tally-launch with stand-ins for the roles: what it starts, prints, ends and returns.

The stand-ins keep the promises that tally-launch builds on: the scheduler says its port, ends with 0
when all workers have left, and with 1 when anyone vanished; the servers do as the scheduler does; so do
workers that wait in end().
"""
import fcntl
import os
import re
import select
import signal
import sys
import termios

import pytest

from job import LIMIT_S, ROOT, marked, wait_pid_gone

LAUNCH = os.path.join(ROOT, "scripts", "tally-launch")

COMMON = """#!%s -IS
import os, signal, socket, sys
say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\\n").encode())    # also in a handler
env = os.environ
address = ("127.0.0.1", int(env.get("DMLC_PS_ROOT_PORT", "0")))
""" % sys.executable

FAKES = {
    "tally-scheduler": """
import select, selectors
say("scheduler pid", os.getpid(), "arguments", len(sys.argv) - 1)
exec(env.get("SCHEDULER_CODE", ""))
listener = socket.create_server(address)
say("tally-scheduler listening on 127.0.0.1:%d" % listener.getsockname()[1])
selector, said, left, failed = selectors.DefaultSelector(), {}, 0, False
for _ in range(int(env["DMLC_NUM_WORKER"]) + int(env["DMLC_NUM_SERVER"])):
    peer, _ = listener.accept()
    said[peer] = b""
    selector.register(peer, 1)
while left < int(env["DMLC_NUM_WORKER"]) and not failed:
    for key, _ in selector.select():
        data = key.fileobj.recv(100)
        said[key.fileobj] += data
        if not data:
            selector.unregister(key.fileobj)
            words = said[key.fileobj].split()
            left += words[-1:] == [b"left"]
            if words[-1:] != [b"left"]:
                failed = True
                try:             # its connection is gone, it may not be: what follows must come later
                    select.select([os.pidfd_open(int(words[1]))], [], [])
                except ProcessLookupError:
                    pass
for peer in said:
    try:
        peer.send(b"%d" % failed)
    except OSError:
        pass
os._exit(failed)
""",
    "tally-server": """
say("server pid", os.getpid(), "arguments", len(sys.argv) - 1)
exec(env.get("SERVER_CODE", ""))
link = socket.create_connection(address)
link.send(b"server %d" % os.getpid())
say("joined")
os._exit(int(link.recv(1) or b"1"))
""",
    # runs its argument, which has rank and end(), then leaves
    "member": """
link = socket.create_connection(address)
link.send(b"worker %d" % os.getpid())
rank = int(env["DMLC_WORKER_ID"])
def end():
    os._exit(int(link.recv(1) or b"1"))
exec(sys.argv[1])
link.send(b" left")
""",
    # runs its argument
    "alone": "exec(sys.argv[1])",
}


class Launcher:
    """Runs tally-launch with the stand-ins, in an empty directory that must stay empty."""

    def __init__(self, job, folder):
        self.job = job
        self.bin = str(folder / "bin")
        self.empty = folder / "empty"
        self.empty.mkdir()
        os.mkdir(self.bin)
        for name, code in FAKES.items():
            path = os.path.join(self.bin, name)
            with open(path, "w") as file:
                file.write(COMMON + code)
            os.chmod(path, 0o755)

    def role(self, role, *arguments, env=None):
        """tally-launch alone; role None leaves DMLC_ROLE unset."""
        settings = dict(env or {}, **({"DMLC_ROLE": role} if role is not None else {}))
        return self.job.start("launch", [LAUNCH, "--bindir", self.bin] + list(arguments), settings,
                              cwd=str(self.empty))

    def local(self, options, command, env=None, **keywords):
        settings = dict({"TMPDIR": str(self.empty)}, **(env or {}))
        return self.job.start("launch", [LAUNCH, "--local", "--bindir", self.bin] + options.split() +
                              ["--"] + [os.path.join(self.bin, command[0])] + command[1:], settings,
                              cwd=str(self.empty), **keywords)

    def members(self, options, code, **keywords):
        return self.local(options, ["member", code], **keywords)


@pytest.fixture
def launch(job, tmp_path):
    launcher = Launcher(job, tmp_path)
    yield launcher
    assert os.listdir(launcher.empty) == []


def lines_of(process, stream, prefix):
    """The lines with this prefix, without it."""
    return [line[len(prefix) + 3:] for line in process.text(stream).splitlines()
            if line.startswith("[%s] " % prefix)]


def own_lines(process):
    return [line for line in process.text("stderr").splitlines() if line.startswith("tally-launch: ")]


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
        return [int(word) for word in file.read().split()]


# ---------------------------------------------------------------------------------------------------
# One role from the environment

@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_role_is_executed_in_place_and_its_status_returned(launch, role):
    code = {role.upper() + "_CODE": "sys.exit(5)"}
    process = launch.role(role, "train.py", "--local", env=code)
    assert process.wait() == 5
    assert process.text("stdout") == "%s pid %d arguments 0\n" % (role, process.pid)


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_worker_gets_its_words_untouched_and_its_local_rank(launch, dashes):
    show = "say(os.getpid(), sys.argv[2:], env['BYTEPS_LOCAL_RANK'], env['BYTEPS_LOCAL_SIZE'])"
    words = ["--local", "--workers", "3", "--help", "--", "-x", ""]
    process = launch.role("worker", *dashes, launch.bin + "/alone", show, *words)
    assert process.wait() == 0
    assert process.text("stdout") == "%d %r 0 1\n" % (process.pid, words)


def test_a_worker_keeps_the_local_rank_that_it_was_given(launch):
    process = launch.role("worker", "sh", "-c", "echo $BYTEPS_LOCAL_RANK $BYTEPS_LOCAL_SIZE",
                          env={"BYTEPS_LOCAL_RANK": "2", "BYTEPS_LOCAL_SIZE": "4"})
    assert process.wait() == 0
    assert process.text("stdout") == "2 4\n"


def test_a_worker_starts_with_no_signal_ignored_or_blocked(launch):
    process = launch.role("worker", "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    assert process.wait() == 0
    # 32 and 33 are the C library's own: whoever started us with posix_spawn leaves 32 ignored.
    own = 1 << 31 | 1 << 32
    assert [int(line.split()[1], 16) & ~own for line in process.text("stdout").splitlines()] == [0, 0]


def test_a_signal_ends_the_role_itself(launch):
    process = launch.role("worker", launch.bin + "/alone", "say('ready'); signal.pause()")
    process.wait_line("^ready$")
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("role, arguments, status, sentence", [
    (None, ["true"], 2, "DMLC_ROLE is not set; known roles are scheduler, server, worker"),
    ("", ["true"], 2, "DMLC_ROLE= is not a role; known roles are scheduler, server, worker"),
    ("joint", ["true"], 2, "DMLC_ROLE=joint is not a role; known roles are scheduler, server, worker"),
    ("worker", [], 2, "DMLC_ROLE=worker needs a command"),
    ("worker", ["no-such-command", "-x"], 127, "command 'no-such-command' not found in PATH="),
    ("worker", ["./no-such-command"], 127, "command ./no-such-command not found"),
    ("worker", ["/etc/passwd"], 126, "command /etc/passwd is not executable"),
    ("server", ["--bindir", "/dev"], 127, "tally-server not found in /dev, given as --bindir"),
    ("worker", ["--workers", "2", "true"], 2, "--workers goes with --local"),
    ("worker", ["--wrokers", "true"], 2, "unrecognized arguments: --wrokers"),
])
def test_a_role_that_cannot_start_says_why(launch, role, arguments, status, sentence):
    process = launch.role(role, *arguments)
    assert process.wait() == status
    assert sentence in process.text("stderr")
    assert process.text("stdout") == ""


# ---------------------------------------------------------------------------------------------------
# Usage of --local

@pytest.mark.parametrize("options, sentence", [
    ("", "--local needs --workers N"),
    ("--workers 0", "argument --workers: '0' is not a whole number from 1 to 4096"),
    ("--workers -1", "argument --workers: '-1' is not a whole number from 1 to 4096"),
    ("--workers two", "argument --workers: 'two' is not a whole number from 1 to 4096"),
    ("--workers 2 --servers 1.5", "argument --servers: '1.5' is not a whole number from 0 to 1024"),
    ("--workers 2 --servers 0", "--servers 0 goes with one worker"),
    ("--workers 1 --servers 0 --env BYTEPS_FORCE_DISTRIBUTED=1", "--servers 0 goes with one worker"),
    ("--workers 1 --servers 1 --env BYTEPS_FORCE_DISTRIBUTED=0", "BYTEPS_FORCE_DISTRIBUTED=0"),
    ("--workers 2 --env NAME", "argument --env: 'NAME' is not NAME=VALUE"),
    ("--workers 2 --env DMLC_ROLE=server", "argument --env: DMLC_ROLE is set by --local itself"),
    ("--workers 2 --grace soon", "argument --grace: 'soon' is not a number of seconds"),
    ("--workers 2 --verbose", "unrecognized arguments: --verbose"),
])
def test_wrong_usage_starts_nothing_and_names_the_option(launch, options, sentence):
    process = launch.members(options, "say('started')")
    assert process.wait() == 2
    assert sentence in process.text("stderr")
    assert process.text("stdout") == ""


def test_local_without_a_command_is_wrong_usage(job):
    process = job.start("launch", [LAUNCH, "--local", "--workers", "2", "--"])
    assert process.wait() == 2
    assert "needs the workers' command" in process.text("stderr")


def test_a_command_that_does_not_exist_starts_nothing(launch):
    process = launch.local("--workers 2", ["nothing-here"])
    assert process.wait() == 127
    assert own_lines(process) == ["tally-launch: command %s/nothing-here not found" % launch.bin]
    assert process.text("stdout") == ""


def test_a_command_that_cannot_be_executed_ends_the_job(launch):
    with open(launch.bin + "/broken", "w") as file:
        file.write("#!/no/such/interpreter\n")
    os.chmod(launch.bin + "/broken", 0o755)
    process = launch.local("--workers 2", ["broken"])
    assert process.wait() == 127
    assert own_lines(process) == [
        "tally-launch: cannot run %s/broken: No such file or directory" % launch.bin]


def test_help_tells_every_option(job):
    process = job.start("launch", [LAUNCH, "--help"])
    assert process.wait() == 0
    for option in ("--bindir", "--local", "--workers", "--servers", "--env", "--grace", "--start-limit"):
        assert "\n  %s " % option in process.text("stdout")


# ---------------------------------------------------------------------------------------------------
# A job that goes well

SHOW = "say(' '.join('%s=%s' % (n, env[n]) for n in sorted(env) if n.startswith(('DMLC_', 'BYTEPS_', 'X_'))))"


def test_each_process_gets_its_place_and_inherits_the_rest(launch):
    caller = {"DMLC_ROLE": "joint", "DMLC_PS_ROOT_PORT": "1", "DMLC_INTERFACE": "nonesuch0",
              "DMLC_WORKER_ID": "7", "BYTEPS_LOCAL_RANK": "3", "X_KEPT": "kept", "X_SET": "old",
              "SERVER_CODE": SHOW, "SCHEDULER_CODE": SHOW}
    process = launch.members("--workers 2 --servers 2 --env X_SET=a=b --env X_NEW=", SHOW, env=caller)
    assert process.wait() == 0, str(process)
    port = process.wait_line(r"listening on 127\.0\.0\.1:(\d+)").group(1)
    for name, place in {
            "scheduler": "DMLC_NODE_HOST=127.0.0.1 DMLC_NUM_SERVER=2 DMLC_NUM_WORKER=2"
                         " DMLC_PS_ROOT_PORT=0 DMLC_PS_ROOT_URI=127.0.0.1 DMLC_ROLE=scheduler",
            "server 1": "DMLC_NODE_HOST=127.0.0.1 DMLC_NUM_SERVER=2 DMLC_NUM_WORKER=2"
                        " DMLC_PS_ROOT_PORT=%s DMLC_PS_ROOT_URI=127.0.0.1 DMLC_ROLE=server" % port,
            "worker 1": "BYTEPS_LOCAL_RANK=0 BYTEPS_LOCAL_SIZE=1"
                        " DMLC_NODE_HOST=127.0.0.1 DMLC_NUM_SERVER=2 DMLC_NUM_WORKER=2"
                        " DMLC_PS_ROOT_PORT=%s DMLC_PS_ROOT_URI=127.0.0.1 DMLC_ROLE=worker"
                        " DMLC_WORKER_ID=1" % port}.items():
        assert place + " X_KEPT=kept X_NEW= X_SET=a=b" in lines_of(process, "stdout", name)
    assert process.text("stderr") == ""


def test_one_worker_runs_alone(launch):
    process = launch.local("--workers 1", ["alone", SHOW], env={"DMLC_PS_ROOT_URI": "elsewhere"})
    assert process.wait() == 0
    assert process.text("stdout") == ("[worker 0] BYTEPS_LOCAL_RANK=0 BYTEPS_LOCAL_SIZE=1 DMLC_NUM_WORKER=1"
                                      " DMLC_ROLE=worker DMLC_WORKER_ID=0\n")


@pytest.mark.parametrize("options", ["--servers 1", "--env BYTEPS_FORCE_DISTRIBUTED=1"])
def test_one_worker_gets_servers_when_they_are_asked_for(launch, options):
    process = launch.members("--workers 1 " + options, "say(env['BYTEPS_FORCE_DISTRIBUTED'])")
    assert process.wait() == 0
    assert lines_of(process, "stdout", "worker 0") == ["1"]
    assert "joined" in lines_of(process, "stdout", "server 0")


def test_lines_keep_their_bytes_and_their_stream(launch):
    process = launch.members("--workers 1 --servers 1", (
        "os.write(1, b'one\\n\\n\\xff\\xfe\\x00 raw\\r\\nlast'); os.write(2, b'problem\\nno newline')"))
    assert process.wait() == 0
    out = [line for kind, line in process.lines if kind == "stdout" and line.startswith(b"[worker 0] ")]
    assert out == [b"[worker 0] one\n", b"[worker 0] \n", b"[worker 0] \xff\xfe\x00 raw\r\n",
                   b"[worker 0] last\n"]
    assert process.output("stderr") == b"[worker 0] problem\n[worker 0] no newline\n"


def test_output_into_a_file_is_complete(launch, tmp_path):
    with open(tmp_path / "log", "wb") as log:
        process = launch.members("--workers 2 --servers 1", "say('out', rank); os.write(2, b'err')",
                                 stdout=log, stderr=log)
    assert process.wait() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3 + 1 + 2 * 2
    for rank in range(2):
        assert {"[worker %d] out %d" % (rank, rank), "[worker %d] err" % rank} < set(lines)


def test_a_closed_output_stays_closed(launch):
    words = [LAUNCH, "--local", "--workers", "1", "--",
             launch.bin + "/alone", "say('lost'); os.write(2, b'seen')"]
    process = launch.job.start("launch", ["sh", "-c", 'exec "$@" >&-', "sh"] + words)
    assert process.wait() == 0
    assert process.text("stderr") == "[worker 0] seen\n"


def test_output_that_cannot_be_written_ends_the_job(launch):
    with open("/dev/full", "wb") as full:
        process = launch.members("--workers 1 --servers 1", "say('lost'); signal.pause()", stdout=full)
    assert process.wait() == 1
    assert own_lines(process) == [
        "tally-launch: cannot write to standard output: No space left on device; ending the job"]


def test_large_outputs_of_many_workers_stay_whole(launch):
    code = "for i in range(6000): print(rank, i, 'x' * (i % 400))"
    process = launch.members("--workers 4 --servers 1", code)
    assert process.wait() == 0
    for rank in range(4):
        expected = ["%d %d %s" % (rank, i, "x" * (i % 400)) for i in range(6000)]
        assert lines_of(process, "stdout", "worker %d" % rank) == expected


def test_an_endless_line_is_printed_in_pieces_while_it_grows(launch):
    code = ("[os.write(1, b'y' * 65536) for _ in range(64)]; print('written', file=sys.stderr, flush=True)\n"
            "signal.pause()")
    process = launch.members("--workers 1 --servers 1 --grace 1", code)
    process.wait_line("^.worker 0. written$")
    process.wait_line("^.worker 0. yyyy")    # although the line has not ended
    process.signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert sum(map(len, lines_of(process, "stdout", "worker 0"))) == 64 * 65536


def test_an_idle_job_does_not_wake_the_launcher(launch):
    process = launch.members("--workers 2 --servers 1", "say('ready'); signal.pause()")
    for rank in range(2):
        process.wait_line("^.worker %d. ready$" % rank)
    process.wait_line("^.server 0. joined$")
    pids = [process.pid] + children_of(process.pid)
    assert len(pids) == 2

    def wakeups():
        text = "".join(open("/proc/%d/status" % pid).read() for pid in pids)
        return [int(count) for count in re.findall(r"voluntary_ctxt_switches:\t(\d+)", text)]

    def settled():               # the lines above are printed before it goes back to wait
        before = wakeups()
        assert not process.ends_within(0.2)
        return before == wakeups()

    assert settled() or settled()
    process.signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM


# ---------------------------------------------------------------------------------------------------
# Failures

def test_the_first_failure_gives_the_status_and_the_line(launch):
    code = "say('pid', os.getpid())\nif rank == 1: os._exit(7)\nend()"
    process = launch.members("--workers 3 --servers 2", code)
    assert process.wait() == 7, str(process)
    pid = process.wait_line(r"^.worker 1. pid (\d+)").group(1)
    assert own_lines(process) == ["tally-launch: worker 1 (pid %s) ended with status 7" % pid]


@pytest.mark.parametrize("name", ["scheduler", "server 1", "worker 0"])
def test_a_killed_role_ends_the_job(launch, name):
    process = launch.members("--workers 2 --servers 2", "say('pid', os.getpid()); end()")
    pids = {}
    for other in ("scheduler", "server 0", "server 1", "worker 0", "worker 1"):
        pids[other] = int(process.wait_line(r"^.%s. .*pid (\d+)" % other).group(1))
    for rank in range(2):
        process.wait_line("^.server %d. joined$" % rank)
    os.kill(pids[name], signal.SIGKILL)
    assert process.wait() == 128 + signal.SIGKILL
    assert own_lines(process) == [
        "tally-launch: %s (pid %d) ended by signal 9 (SIGKILL)" % (name, pids[name])]
    launch.job.assert_nothing_left()


def test_who_does_not_notice_a_failure_is_ended(launch):
    code = "if rank == 1: os._exit(3)\nsignal.pause()"
    process = launch.members("--workers 2 --servers 1 --grace 0.1 --env TALLY_DEATH_LIMIT_MS=300", code)
    assert process.wait() == 3
    first, second = own_lines(process)
    assert first.endswith(" ended with status 3")
    assert re.search(r"still running 5\.3 s after the failure: worker 0 \(pid \d+\); sending", second)


def test_servers_that_stay_after_the_last_worker_are_ended(launch):
    process = launch.members("--workers 2 --servers 1 --grace 0.2", "pass",
                             env={"SERVER_CODE": "link = socket.create_connection(address); signal.pause()"})
    assert process.wait() == 1
    line, = own_lines(process)
    assert re.search(r"still running 0\.2 s after the last worker ended: server 0 \(pid \d+\); sending", line)


def test_a_scheduler_that_ends_at_once_ends_the_job(launch):
    code = "sys.stderr.write('port 9000: Address already in use'); sys.exit(4)"
    process = launch.members("--workers 2", "say('started')", env={"SCHEDULER_CODE": code})
    assert process.wait(5) == 4
    shown, own = process.text("stderr").splitlines()
    assert shown == "[scheduler] port 9000: Address already in use"
    assert re.search(r"^tally-launch: scheduler \(pid \d+\) ended with status 4 before the other roles", own)
    assert "started" not in process.text("stdout")


def test_a_scheduler_that_ends_well_before_the_job_starts_is_a_failure(launch):
    process = launch.members("--workers 2", "say('started')", env={"SCHEDULER_CODE": "sys.exit(0)"})
    assert process.wait(5) == 1
    assert "started" not in process.text("stdout")


def test_a_scheduler_that_never_says_its_port_is_ended(launch):
    process = launch.members("--workers 2 --start-limit 0.2", "say('started')",
                             env={"SCHEDULER_CODE": "signal.pause()"})
    assert process.wait(5) == 1
    assert own_lines(process) == [
        "tally-launch: scheduler has not said its port within 0.2 s; sending SIGTERM"]


# ---------------------------------------------------------------------------------------------------
# Signals

def ready_job(launch, code, options="--workers 2 --servers 1", **keywords):
    process = launch.members(options, code + "\nsay('ready')\nwhile True: signal.pause()", **keywords)
    if "stdout" not in keywords:
        for rank in range(2):
            process.wait_line("^.worker %d. ready$" % rank)
        process.wait_line("^.server 0. joined$")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_every_process_and_gives_the_status(launch, number):
    code = "for n in (1, 2, 15): signal.signal(n, lambda n, f: (say('got', n), os._exit(0)))"
    process = ready_job(launch, code)
    process.signal(number)
    assert process.wait(5) == 128 + number
    for rank in range(2):
        assert lines_of(process, "stdout", "worker %d" % rank) == ["ready", "got %d" % number]
    line, = own_lines(process)
    assert line.startswith("tally-launch: %s: ending the job" % signal.Signals(number).name)
    launch.job.assert_nothing_left()


def test_ctrl_c_at_a_terminal_reaches_each_process_once(launch):
    terminal, inside = os.openpty()

    def take_terminal():
        fcntl.ioctl(inside, termios.TIOCSCTTY, 0)

    code = ("count = 0\ndef count_it(n, f):\n global count\n count += 1\n say('interrupted')\n"
            "signal.signal(2, count_it)\nsignal.signal(10, lambda n, f: (say('times', count), os._exit(0)))\n"
            "say('pid', os.getpid(), '.')\n")
    process = ready_job(launch, code, stdin=inside, stdout=inside, stderr=inside, preexec_fn=take_terminal)
    os.close(inside)
    seen = b""

    def see(pattern):
        nonlocal seen
        while not re.search(pattern, seen):
            assert select.select([terminal], [], [], LIMIT_S)[0], seen
            seen += os.read(terminal, 4096)
        return re.findall(pattern, seen)

    def colour(rank):
        return br"\x1b\[32m\[worker %d\]\x1b\[0m " % rank

    pids = [int(see(colour(rank) + br"pid (\d+) \.")[0]) for rank in range(2)]
    for rank in range(2):
        see(colour(rank) + b"ready")
    see(br"\[server 0\]\x1b\[0m joined")
    os.write(terminal, b"\x03")
    for rank in range(2):
        see(colour(rank) + b"interrupted")
    for rank in range(2):
        os.kill(pids[rank], signal.SIGUSR1)
        see(colour(rank) + b"times 1\r")
    assert process.wait(5) == 128 + signal.SIGINT
    os.close(terminal)


def test_a_second_ctrl_c_kills_at_once(launch):
    code = "for n in (2, 15): signal.signal(n, lambda n, f: say('ignored', n))"
    process = ready_job(launch, code, "--workers 2 --servers 1 --grace 3600")
    process.signal(signal.SIGINT)
    process.wait_line("^.worker 0. ignored 2$")
    assert not process.ends_within(0.2)
    process.signal(signal.SIGINT)
    assert process.wait(5) == 128 + signal.SIGINT
    launch.job.assert_nothing_left()


def test_who_ignores_a_signal_is_killed_after_the_grace_period(launch):
    process = ready_job(launch, "signal.signal(15, signal.SIG_IGN)",
                        "--workers 2 --servers 1 --grace 0.2")
    process.signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    launch.job.assert_nothing_left()


def test_a_reader_that_goes_away_ends_the_job(launch):
    reader, writer = os.pipe()
    process = launch.members("--workers 2 --servers 1", "while True: say('y' * 100)", stdout=writer)
    os.close(writer)
    assert os.read(reader, 1) == b"["
    os.close(reader)
    assert process.wait(5) == 128 + signal.SIGPIPE
    assert own_lines(process) == [
        "tally-launch: cannot write to standard output: Broken pipe; ending the job"]


def test_a_reader_that_does_not_read_holds_up_no_signal(launch):
    reader, writer = os.pipe()
    process = launch.members("--workers 2 --servers 1", "print('up', file=sys.stderr, flush=True)\n"
                             "while True: say('y' * 100)", stdout=writer)
    os.close(writer)
    process.wait_line("^.worker 1. up$")
    pids = [pid for pid in marked(launch.job.mark)
            if pid not in [process.pid] + children_of(process.pid)]
    process.signal(signal.SIGINT)
    assert all(wait_pid_gone(pid, 5) for pid in pids)
    assert not process.ends_within(0.1)      # the lines still wait for the reader
    process.signal(signal.SIGINT)            # who does not want them any more
    assert process.wait(5) == 128 + signal.SIGINT
    os.close(reader)


# ---------------------------------------------------------------------------------------------------
# Nothing is left

# starts a process in a session of its own, whose parent has ended, and which ignores polite signals
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        link.close()
        for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
        say('daemon', os.getpid(), '.')
        while True: signal.pause()
    os._exit(0)
os.wait()
"""
# and one in the worker's own group
HELPER = """
if os.fork() == 0:
    link.close()
    say('helper', os.getpid(), '.')
    while True: signal.pause()
"""


@pytest.mark.parametrize("who", ["guard", "supervisor"])
def test_killing_the_launcher_leaves_nothing(launch, who):
    process = ready_job(launch, DAEMON + HELPER)
    for rank in range(2):
        process.wait_line(r"^.worker %d. daemon \d+ \." % rank)
        process.wait_line(r"^.worker %d. helper \d+ \." % rank)
    assert len(marked(launch.job.mark)) == 2 + 1 + 1 + 2 * 3
    os.kill(process.pid if who == "guard" else children_of(process.pid)[0], signal.SIGKILL)
    assert process.wait(5) == (-9 if who == "guard" else 128 + 9)
    launch.job.assert_nothing_left()
    assert [line for line in own_lines(process) if "its supervisor" not in line] == []


def test_killing_guard_and_supervisor_together_leaves_no_role(launch):
    process = ready_job(launch, "pass")
    for pid in children_of(process.pid) + [process.pid]:
        os.kill(pid, signal.SIGKILL)
    launch.job.assert_nothing_left()


def test_processes_that_outlive_the_job_are_ended_and_named(launch):
    process = launch.members("--workers 1 --servers 1 --grace 0.1", DAEMON + HELPER)
    assert process.wait(5) == 0, str(process)
    daemon = int(process.wait_line(r"^.worker 0. daemon (\d+) \.").group(1))
    helper = int(process.wait_line(r"^.worker 0. helper (\d+) \.").group(1))
    line, = own_lines(process)
    assert line.startswith("tally-launch: left behind by the job: ")
    assert line.endswith("; sending SIGTERM")
    assert sorted(int(pid) for pid in re.findall(r"\(pid (\d+)\)", line)) == sorted([daemon, helper])
    launch.job.assert_nothing_left()


def test_ctrl_c_ends_daemons_too(launch):
    process = ready_job(launch, DAEMON, "--workers 2 --servers 1 --grace 0.3")
    for rank in range(2):
        process.wait_line(r"^.worker %d. daemon \d+ \." % rank)
    process.signal(signal.SIGINT)
    assert process.wait(5) == 128 + signal.SIGINT
    launch.job.assert_nothing_left()


def test_a_worker_stopped_for_good_is_ended(launch):
    process = ready_job(launch, "say('pid', os.getpid(), '.')", "--workers 2 --servers 1 --grace 0.2")
    os.kill(int(process.wait_line(r"^.worker 1. pid (\d+) \.").group(1)), signal.SIGSTOP)
    process.signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    launch.job.assert_nothing_left()
