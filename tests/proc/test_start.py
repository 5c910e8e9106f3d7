"""Starting: any order, any address, bad settings, too few, too many, and those who disagree."""
import itertools
import os
import re
import signal
import socket
import time

import pytest

from job import free_port, program
from puppet import Puppet, close_all, start_all

def rounds(*options):
    """The command of a worker that checks every value; see tests/proc/rounds.c."""
    return [program("tests/proc/rounds")] + list(options)


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def own_address():
    """The source address of the route to elsewhere, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))   # sends nothing
            return probe.getsockname()[0]
        except OSError:
            return None


def test_any_order_of_starting_gives_the_same_result(make_job):
    """All six orders, each with a second between the roles, at the same time."""
    jobs = []
    for order in itertools.permutations(["scheduler", "server", "worker"]):
        job = make_job(workers=2, servers=2, port=free_port())
        jobs.append((job, order))
    for step in range(3):
        for job, order in jobs:
            if order[step] == "scheduler":
                job.start_scheduler()
            elif order[step] == "server":
                job.start_server()
                job.start_server()
            else:
                for rank in (1, 0):
                    job.start_worker(rank, rounds("--rounds", "5", "--shuffle"))
        if step < 2:   # whoever is there goes on waiting
            deadline = time.monotonic() + 1
            for job, _ in jobs:
                for process in job.processes:
                    assert not process.ends_within(max(0, deadline - time.monotonic())), str(job)
    for job, order in jobs:
        statuses = job.wait_all(60)
        assert set(statuses.values()) == {0}, "%s\n%s" % (order, job)
        assert len(statuses) == 5
        job.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------
# Addresses

@pytest.mark.parametrize("uri, registered", [
    ("127.0.0.1", r"tcp://127\.0\.0\.1:\d+"),
    ("localhost", r"tcp://127\.0\.0\.1:\d+"),
    ("::1", r"tcp://\[::1\]:\d+"),
    ("[::1]", r"tcp://\[::1\]:\d+"),
    ("a host name", None),
    ("own address", None),
])
def test_every_way_to_write_the_schedulers_address_works(job, uri, registered):
    """And without DMLC_INTERFACE a node takes the source address of the route to it."""
    if ":" in uri and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    if uri == "own address":
        uri = own_address()
        if uri is None:
            pytest.skip("no route to anywhere")
        registered = "tcp://%s:" % re.escape(uri)
    elif uri == "a host name":
        uri = socket.gethostname()
        try:
            address = socket.getaddrinfo(uri, None, socket.AF_INET)[0][4][0]
        except OSError:
            pytest.skip("this machine's name does not resolve")
        registered = "tcp://%s:" % re.escape(address)
    env = {"DMLC_PS_ROOT_URI": uri, "DMLC_NODE_HOST": None, "BYTEPS_FORCE_DISTRIBUTED": "1"}
    scheduler = job.start_scheduler(dict(env, BYTEPS_LOG_LEVEL="INFO"))
    job.start_server(env)
    job.start_worker(0, rounds("--rounds", "3"), env)
    assert set(job.wait_all().values()) == {0}, str(job)
    assert re.search(r"server .* registered at " + registered, scheduler.text("stderr")), str(scheduler)


def test_a_node_takes_the_interface_that_it_is_told(job):
    env = {"DMLC_INTERFACE": "lo", "DMLC_NODE_HOST": None, "BYTEPS_FORCE_DISTRIBUTED": "1"}
    scheduler = job.start_scheduler(dict(env, BYTEPS_LOG_LEVEL="INFO"))
    job.start_server(env)
    job.start_worker(0, rounds("--rounds", "3"), env)
    assert set(job.wait_all().values()) == {0}, str(job)
    assert re.search(r"registered at tcp://127\.0\.0\.1:", scheduler.text("stderr")), str(scheduler)


# ---------------------------------------------------------------------------------------------------
# Settings

NUMBERS = ["DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"]
REQUIRED = {
    "scheduler": NUMBERS + ["DMLC_PS_ROOT_URI"],
    "server": NUMBERS + ["DMLC_PS_ROOT_URI"],
    "worker": NUMBERS + ["DMLC_PS_ROOT_URI", "DMLC_WORKER_ID"],
}
BAD = [
    (role, name, value)
    for role, names in REQUIRED.items() for name in names
    for value in ([None, ""] if name == "DMLC_PS_ROOT_URI" else [None, "", "abc", "-1", "99999999", "1x", " 1"])
] + [
    (role, name, value)
    for role in REQUIRED
    for name, value in [("DMLC_PS_ROOT_URI", "no-such-host.invalid"), ("TALLY_DEATH_LIMIT_MS", "soon"),
                        ("BYTEPS_LOG_LEVEL", "LOUD"), ("DMLC_ROLE", "joker"), ("DMLC_ROLE", "")]
] + [
    (role, "DMLC_INTERFACE", "no-such-if0") for role in ("server", "worker")
] + [
    (role, "DMLC_NODE_HOST", "no-such-host.invalid") for role in ("server", "worker")
] + [
    ("worker", "BYTEPS_PARTITION_BYTES", "4095"), ("worker", "DMLC_WORKER_ID", "2"),
    ("server", "BYTEPS_SERVER_ENGINE_THREAD", "6500"),
]
COMMANDS = {"scheduler": "tally-scheduler", "server": "tally-server", "worker": "tests/proc/rounds"}


def test_a_bad_setting_ends_each_role_at_once_and_is_named(make_job):
    """Each required setting missing, empty, not a number, negative or out of range; names that do not
    resolve and interfaces that do not exist. At most 12 at a time, so that the limit means something."""
    for first in range(0, len(BAD), 12):
        running = []
        for role, name, value in BAD[first:first + 12]:
            job = make_job(workers=2, servers=1)
            env = {"DMLC_WORKER_ID": "0"} if role == "worker" else {}
            if name == "DMLC_INTERFACE":
                env["DMLC_NODE_HOST"] = None
            env[name] = value
            running.append((job.start(role, [program(COMMANDS[role])], env, role), role, name, value))
        for process, role, name, value in running:
            case = "%s %s=%r\n%s" % (role, name, value, process)
            assert process.ends_within(2), case
            assert process.wait() in (2, 3), case           # 3: the host program's own
            said = process.text("stdout") + process.text("stderr")
            assert name in said, case
            assert not value or value in said, case
            assert value is not None or "not set" in said, case
            assert value != "" or "is empty" in said, case
            if name == "DMLC_INTERFACE":
                assert re.search(r"interfaces here: .*\blo 127\.0\.0\.1", said), case


def test_an_unknown_role_is_named(job):
    process = job.start("launch", [program("tally-launch")], {"DMLC_ROLE": "joker"})
    assert process.wait(2) != 0
    assert "joker" in process.text("stderr") and "DMLC_ROLE" in process.text("stderr"), str(process)


def test_a_busy_port_ends_the_scheduler_at_once(job):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        job.port = holder.getsockname()[1]
        scheduler = job.start_scheduler()
        assert scheduler.wait(2) == 1, str(scheduler)
        assert re.search(r"port %d.*Address already in use" % job.port, scheduler.text("stderr")), str(scheduler)


# ---------------------------------------------------------------------------------------------------
# Too few, too many, and those who disagree

def test_who_is_missing_is_said_every_5_s_and_named_at_the_limit(make_job):
    job = make_job(workers=3, servers=2, env={"TALLY_START_LIMIT_MS": "10700"})
    scheduler = job.start_scheduler()
    server = job.start_server()
    worker = job.start_worker(1, rounds())
    statuses = job.wait_all(30)
    assert statuses == {"scheduler": 1, "server 0": 1, "worker 1": 3}, str(job)
    waiting = "waiting for 2 of 3 workers (workers 0, 2) and 1 of 2 servers"
    too_few = ("only 1 of 3 workers and 1 of 2 servers came within 10700 ms (TALLY_START_LIMIT_MS); missing: "
               "workers 0, 2, 1 server")
    for process in (scheduler, server, worker):
        assert process.text("stderr").count(waiting) == 2, str(process)
        assert too_few in process.text("stderr"), str(process)
    worker.wait_line(r"^open TALLY_ETIMEDOUT " + re.escape(too_few) + "$")
    worker.wait_line("the host program goes on")


def test_without_a_scheduler_every_role_says_so_at_the_limit(make_job):
    job = make_job(workers=2, servers=1, env={"TALLY_START_LIMIT_MS": "500"})
    server = job.start_server()
    worker = job.start_worker(0, rounds())
    assert job.wait_all(10) == {"server 0": 1, "worker 0": 3}
    for process in (server, worker):
        assert re.search(r"no answer from the scheduler at tcp://127\.0\.0\.1:%d within 500 ms "
                         r"\(TALLY_START_LIMIT_MS\): Connection refused" % job.port, process.text("stderr")), process


@pytest.mark.sanitize
def test_whoever_is_too_many_is_refused_and_the_job_goes_on(make_job):
    job = make_job(workers=2, servers=1)
    scheduler = job.start_scheduler()
    server = job.start_server()
    workers = [Puppet(job, rank) for rank in range(2)]
    start_all(*workers)
    for worker in workers:
        worker.declare(0, "grad")

    def exchange(value):
        for worker in workers:
            assert worker.push(0, 0, value) == "TALLY_OK"
        for worker in workers:
            assert worker.wait(0) == "TALLY_OK" and worker.value(0) == str(2 * value)

    exchange(1)
    refused = [
        ("worker", {"DMLC_WORKER_ID": "1"}, r"DMLC_WORKER_ID=1 is already taken by \S+ pid %d; this is \S+ pid %d"),
        ("worker", {"DMLC_WORKER_ID": "2", "DMLC_NUM_WORKER": "3"},
         r"this worker was told DMLC_NUM_WORKER=3, the scheduler 2"),
        ("worker", {"DMLC_WORKER_ID": "0", "DMLC_NUM_SERVER": "4"},
         r"this worker was told DMLC_NUM_SERVER=4, the scheduler 1"),
        ("server", {}, r"the job has already started with its 1 server \(DMLC_NUM_SERVER\); this is \S+ pid %d"),
        ("server", {"DMLC_NUM_SERVER": "2"}, r"this server was told DMLC_NUM_SERVER=2, the scheduler 1"),
    ]
    for role, env, words in refused:
        process = job.start("extra " + role, [program(COMMANDS[role])], env, role)
        assert process.wait(5) == (3 if role == "worker" else 1), str(process)
        pids = [workers[1].process.pid, process.pid][-words.count("%d"):] if "%d" in words else []
        assert re.search(words % tuple(pids) if pids else words, process.text("stderr")), str(process)
        if role == "worker":
            process.wait_line(r"^open TALLY_EREFUSED ")
        exchange(2)
    close_all(*workers)
    assert scheduler.wait() == 0 and server.wait() == 0, str(job)


@pytest.mark.parametrize("role, env, words", [
    ("worker", {"DMLC_WORKER_ID": "0"}, r"DMLC_WORKER_ID=0 is already taken by"),
    ("server", {"DMLC_NUM_WORKER": "5"}, r"this server was told DMLC_NUM_WORKER=5, the scheduler 2"),
])
def test_whoever_disagrees_before_the_start_is_refused_and_the_job_starts(make_job, role, env, words):
    job = make_job(workers=2, servers=1)
    scheduler = job.start_scheduler({"BYTEPS_LOG_LEVEL": "INFO"})
    first = job.start_worker(0, rounds("--rounds", "3"))
    scheduler.wait_line(r"worker 0 .* registered")
    extra = job.start("extra " + role, [program(COMMANDS[role])], env, role)
    assert extra.wait(5) in (1, 3), str(extra)
    assert re.search(words, extra.text("stderr")), str(extra)
    rest = [job.start_server(), job.start_worker(1, rounds("--rounds", "3"))]
    assert [process.wait() for process in [first, scheduler] + rest] == [0, 0, 0, 0], str(job)


def test_a_worker_that_restarts_before_the_job_does_takes_its_own_place(make_job):
    """Killed while it waited; a new process of that number is refused only while the old one may live."""
    job = make_job(workers=2, servers=1, env={"TALLY_DEATH_LIMIT_MS": "1000"})
    scheduler = job.start_scheduler({"BYTEPS_LOG_LEVEL": "INFO"})
    first = job.start_worker(0, rounds())
    scheduler.wait_line(r"worker 0 .* registered")
    first.kill()
    assert first.wait() == -signal.SIGKILL
    early = job.start_worker(0, rounds("--rounds", "3"))
    assert early.wait() == 3
    assert "already taken" in early.text("stderr"), str(job)
    scheduler.wait_line(r"pid %d went silent before the start; its place is free again" % first.pid)
    again = job.start_worker(0, rounds("--rounds", "3"))
    rest = [job.start_server(), job.start_worker(1, rounds("--rounds", "3"))]
    assert [process.wait() for process in [again, scheduler] + rest] == [0, 0, 0, 0], str(job)


# ---------------------------------------------------------------------------------------------------
# A server that cannot be reached

def test_a_server_address_that_refuses_fails_the_worker_and_names_both_ends(make_job):
    unreachable(make_job, "127.0.0.1:%d" % free_port(), "Connection refused")


def test_a_server_address_that_is_silent_fails_the_worker_and_names_both_ends(make_job):
    """Something accepts connections there and never says a word."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        unreachable(make_job, "127.0.0.1:%d" % silent.getsockname()[1], "")


def unreachable(make_job, address, reason):
    job = make_job(workers=2, servers=1, env={"TALLY_DEATH_LIMIT_MS": "1000"})
    scheduler = job.start_scheduler()
    server = job.start("server 0", [program("tests/proc/foreign"), "server", "tcp://" + address], role="server")
    workers = [job.start_worker(rank, rounds()) for rank in range(2)]
    for rank, worker in enumerate(workers):
        worker.wait_line("^open TALLY_OK")
    start = time.monotonic()
    said = [worker.wait_line(r"^failed \w+ TALLY_EFAILED (.*)$").group(1) for worker in workers]
    assert time.monotonic() - start < 3, str(job)
    assert said[0] == said[1]
    assert re.match(r"worker [01] \(\S+ pid (%d|%d)\) cannot reach server 0 \(\S+ pid %d\) at tcp://%s within 0\.8 s"
                    % (workers[0].pid, workers[1].pid, server.pid, re.escape(address)), said[0]), said[0]
    assert reason in said[0]
    assert server.wait_line(r"^ended (.*)$").group(1) == said[0]
    assert job.wait_all() == {"scheduler": 1, "server 0": 0, "worker 0": 3, "worker 1": 3}
    assert said[0] in scheduler.text("stderr")
