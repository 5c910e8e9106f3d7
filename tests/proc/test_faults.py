"""Deaths, departures, stalls and disagreements: what each call says, and when."""
import ctypes
import errno
import os
import random
import re
import signal
import socket
import time

import pytest

from job import program
from puppet import Puppet, close_all, sentence, start_all

DEATH_LIMIT_S = 2
FAST = {"TALLY_DEATH_LIMIT_MS": str(1000 * DEATH_LIMIT_S), "BYTEPS_PARTITION_BYTES": "65536"}


def rounds(*options):
    return [program("tests/proc/rounds")] + list(options)


def start_job(job, *options):
    """A running job of rounds. Gives scheduler, servers, workers."""
    scheduler = job.start_scheduler()
    servers = [job.start_server() for _ in range(job.servers)]
    workers = [job.start_worker(rank, rounds(*options)) for rank in range(job.workers)]
    return scheduler, servers, workers


def start_puppets(job):
    scheduler = job.start_scheduler()
    servers = [job.start_server() for _ in range(job.servers)]
    puppets = [Puppet(job, rank) for rank in range(job.workers)]
    start_all(*puppets)
    return scheduler, servers, puppets


# ---------------------------------------------------------------------------------------------------
# Deaths

def dead_name(role, process):
    """How sentences name it."""
    if role == "scheduler":
        return r"the scheduler \(tcp://127\.0\.0\.1:\d+\) died"
    return r"%s %s \(\S+ pid %d\) died" % (role, r"\d" if role == "server" else process.name.split()[1], process.pid)


def assert_all_fail_alike(job, victim, role, killed_at):
    """Every other program says one sentence that names the victim, within the limit and a second."""
    workers = [process for process in job.processes if process.name.startswith("worker") and process is not victim]
    said = {worker.name: worker.wait_line(r"^failed \w+ (TALLY_\w+ .*)$").group(1) for worker in workers}
    took_s = time.monotonic() - killed_at
    assert took_s < DEATH_LIMIT_S + 1, "%g s\n%s" % (took_s, job)
    assert len(set(said.values())) == 1, "%s\n%s" % (said, job)
    status, words = sentence(next(iter(said.values())))
    assert status == "TALLY_EFAILED"
    assert re.match(dead_name(role, victim), words), words
    for worker in workers:
        assert worker.wait(15) == 3, str(job)
        text = worker.text("stdout")
        later = re.findall(r"^later (\w+) (.*)$", text, re.MULTILINE)
        assert {"push_pull", "broadcast", "declare", "barrier"} <= {call for call, _ in later}
        # a tensor that had its result before keeps it
        assert {answer.strip() for call, answer in later if call != "wait"} == {"TALLY_EFAILED " + words}, text
        assert {answer.strip() for call, answer in later if call == "wait"} <= {"TALLY_OK", "TALLY_EFAILED " + words}
        assert int(re.search(r"^closed TALLY_OK within (\d+) ms$", text, re.MULTILINE).group(1)) < 7000, text
        assert "the host program goes on" in text
    for process in job.processes:
        if process is victim or process.name.startswith("worker"):
            continue
        assert process.wait(15) == 1, str(job)
        assert words in process.text("stderr"), str(job)
    job.assert_nothing_left()


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.sanitize), 2, 3])
def test_killing_any_role_at_any_moment_fails_all_others_alike(make_job, role, seed):
    """After a random number of steps, while the next are under way."""
    draw = random.Random("%s %d" % (role, seed))
    job = make_job(workers=3, servers=2, env=FAST)
    scheduler, servers, workers = start_job(job, "--tensors", "12", "--count", str(draw.choice([100, 30000, 300000])),
                                            *draw.choice([[], ["--barrier"], ["--fresh"]]))
    victim = {"scheduler": scheduler, "server": draw.choice(servers), "worker": draw.choice(workers)}[role]
    draw.choice(workers).wait_line(r"^round %d$" % draw.randint(1, 12), 60)
    victim.kill()
    assert_all_fail_alike(job, victim, role, time.monotonic())


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_death_while_the_job_is_idle_is_told_by_the_next_call(make_job, role):
    job = make_job(workers=2, servers=1, env=FAST)
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad")
        puppet.push(0, 0, 1)
    assert zero.wait(0) == one.wait(0) == "TALLY_OK"
    assert zero.value(0) == "2"
    victim = {"scheduler": scheduler, "server": servers[0], "worker": one.process}[role]
    victim.kill()
    words = zero.log_line(r"error (%s.*)$" % dead_name(role, victim), DEATH_LIMIT_S + 5).group(1)
    assert zero.push(0, 0, 1) == "TALLY_EFAILED " + words
    assert zero.barrier() == "TALLY_EFAILED " + words
    assert zero.close() == "TALLY_OK"
    assert zero.finish() == 0
    if role != "worker":
        assert one.push(0, 0, 1) == "TALLY_EFAILED " + words
        close_all(one)
    job.wait_all(15)


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_death_while_others_join_ends_their_wait(make_job, role):
    """The job cannot start: whoever waits says so within its limit, or goes on waiting for a new process."""
    job = make_job(workers=2, servers=1, env=dict(FAST, TALLY_START_LIMIT_MS="4000"))
    scheduler = job.start_scheduler({"BYTEPS_LOG_LEVEL": "INFO"})
    server = job.start_server()
    worker = job.start_worker(0, rounds())
    scheduler.wait_line(r"worker 0 .* registered")
    scheduler.wait_line(r"server .* registered")
    {"scheduler": scheduler, "server": server, "worker": worker}[role].kill()
    statuses = job.wait_all(20)
    assert statuses == dict({"scheduler": 1, "server 0": 1, "worker 0": 3},
                            **{{"scheduler": "scheduler", "server": "server 0", "worker": "worker 0"}[role]: -9})
    if role == "scheduler":
        # the second where it died before its first answer
        worker.wait_line(r"^open (TALLY_EFAILED %s: nothing heard from it|TALLY_ETIMEDOUT no answer from the scheduler "
                         r"at tcp://127\.0\.0\.1:%d within 4 s)" % (dead_name(role, scheduler), job.port))
    elif role == "server":
        worker.wait_line(r"^open TALLY_ETIMEDOUT only 1 of 2 workers and 0 of 1 server came within 4 s .*missing: worker 1, "
                         "1 server$")


def test_a_death_while_a_tensor_is_being_sent_lets_go_of_the_callers_memory(make_job):
    """Large inputs by reference, to a server that is stopped and then dies: the requests end, and the
    buffers are freed (an address sanitizer would see a transport that still reads them)."""
    job = make_job(workers=2, servers=1, env={"TALLY_DEATH_LIMIT_MS": "4000"})
    _, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", 4000000)
    servers[0].signal(signal.SIGSTOP)
    for puppet in (zero, one):
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    servers[0].kill()
    answers = [puppet.wait(0) for puppet in (zero, one)]
    assert answers[0] == answers[1]
    assert re.match(r"TALLY_EFAILED " + dead_name("server", servers[0]), answers[0]), answers[0]
    for puppet in (zero, one):
        assert puppet.ask("undeclare", 0) == "TALLY_OK"
    close_all(zero, one)
    job.wait_all(15)


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_node_that_is_stopped_for_too_long_is_dead_and_hears_so_when_it_goes_on(make_job, role):
    job = make_job(workers=2, servers=1, env=FAST)
    scheduler, servers, workers = start_job(job, "--tensors", "3")
    victim = servers[0] if role == "server" else workers[1]
    workers[0].wait_line("^round 3$")
    victim.signal(signal.SIGSTOP)
    words = sentence(workers[0].wait_line(r"^failed \w+ (TALLY_.*)$", DEATH_LIMIT_S + 5).group(1))[1]
    assert re.match(dead_name(role, victim), words), words
    assert workers[0].wait(15) == 3
    victim.signal(signal.SIGCONT)
    # its own words, or that the scheduler has gone meanwhile
    assert victim.wait(15) == (1 if role == "server" else 3), str(job)
    job.wait_all(15)


def test_a_short_stop_is_no_death(make_job):
    """Of every role in turn, for a third of what makes it dead."""
    job = make_job(workers=2, servers=1, env={"TALLY_DEATH_LIMIT_MS": "4500"})
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", 100000)
    for victim in (scheduler, servers[0], one.process):
        victim.signal(signal.SIGSTOP)
        assert zero.push(0, 0, 1) == "TALLY_OK"
        assert zero.wait(0, 1500).startswith("TALLY_ETIMEDOUT"), str(job)
        victim.signal(signal.SIGCONT)
        assert one.push(0, 0, 2) == "TALLY_OK"
        for puppet in (zero, one):
            assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "3"
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)


@pytest.mark.parametrize("signal_number, name", [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")])
@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_signal_to_a_role_fails_the_job_with_its_name(make_job, role, signal_number, name):
    job = make_job(workers=2, servers=2)
    scheduler, servers, workers = start_job(job, "--tensors", "3")
    workers[0].wait_line("^round 3$")
    victim = scheduler if role == "scheduler" else servers[1]
    victim.signal(signal_number)
    start = time.monotonic()
    said = {worker.wait_line(r"^failed \w+ (TALLY_EFAILED .*)$").group(1) for worker in workers}
    assert time.monotonic() - start < 5
    assert len(said) == 1, said
    words = said.pop()
    assert re.search(r"the scheduler was stopped by signal %d \(%s\)" % (signal_number, name)
                     if role == "scheduler" else
                     r"server \d \(\S+ pid %d\) was stopped by signal %d \(%s\)" % (victim.pid, signal_number, name),
                     words), words
    assert set(job.wait_all(20).values()) == {1, 3}, str(job)


# ---------------------------------------------------------------------------------------------------
# Departures

@pytest.mark.sanitize
def test_a_worker_that_closes_has_left_and_is_not_dead(make_job):
    job = make_job(workers=3, servers=2)
    scheduler, servers, (zero, one, two) = start_puppets(job)
    for puppet in (zero, one, two):
        puppet.declare(0, "grad", "float32", 100000)
        puppet.declare(1, "other")
        assert puppet.push(0, 0, 2) == "TALLY_OK"
    for puppet in (zero, one, two):
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "6"
    assert zero.push(0, 0, 1) == "TALLY_OK"          # in flight when worker 1 leaves
    close_all(one)
    assert zero.wait(0) == 'TALLY_ELEFT worker 1 left the job before it took part in round 2 of tensor "grad"'
    assert two.push(0, 0, 1) == "TALLY_OK"           # joins the round that is over
    assert two.wait(0) == 'TALLY_ELEFT worker 1 left the job before it took part in round 2 of tensor "grad"'
    for puppet in (zero, two):
        assert puppet.push(1, 1, 1) == "TALLY_OK"
        assert puppet.wait(1) == 'TALLY_ELEFT worker 1 left the job before it took part in round 1 of tensor "other"'
        assert puppet.barrier() == "TALLY_ELEFT worker 1 left the job before it reached the barrier"
    close_all(zero, two)
    assert set(job.wait_all().values()) == {0}, str(job)


@pytest.mark.sanitize
@pytest.mark.parametrize("count", [10, 1000000])
def test_closing_with_work_in_flight_ends_it_and_leaves_in_order(make_job, count):
    job = make_job(workers=2, servers=2)
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", count)
        puppet.declare(1, "more", "float32", count)
    assert zero.push(0, 0, 1) == "TALLY_OK" and zero.push(1, 1, 1) == "TALLY_OK"
    assert zero.ask("on_done", 1) == "TALLY_OK"
    start = time.monotonic()
    assert zero.close() == "TALLY_OK"
    assert time.monotonic() - start < 7
    zero.line(r"^done 1 TALLY_ECLOSED the context was closed while the request was in flight$")
    assert zero.wait(0) == "TALLY_ECLOSED the context was closed while the request was in flight"
    assert zero.push(0, 0, 1) == "TALLY_ECLOSED the context is closed"
    assert zero.ask("undeclare", 0) == "TALLY_OK" and zero.ask("undeclare", 1) == "TALLY_OK"
    assert zero.finish() == 0
    assert one.push(0, 0, 1) == "TALLY_OK"
    assert one.wait(0) in ("TALLY_OK", 'TALLY_ELEFT worker 0 left the job before it took part in round 1 of tensor "grad"')
    close_all(one)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_closing_is_bounded_when_a_server_is_stopped(make_job):
    job = make_job(workers=2, servers=1, env={"TALLY_CLOSE_LIMIT_MS": "500", "TALLY_DEATH_LIMIT_MS": "60000"})
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", 10000000)
    servers[0].signal(signal.SIGSTOP)
    for puppet in (zero, one):
        puppet.push(0, 0, 1)
    for puppet in (zero, one):
        start = time.monotonic()
        assert puppet.close() == "TALLY_OK"
        assert time.monotonic() - start < 4
        assert puppet.finish() == 0
    servers[0].signal(signal.SIGCONT)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_a_program_that_ends_without_closing_is_dead(make_job):
    job = make_job(workers=2, servers=1, env=FAST)
    scheduler, servers, (zero, one) = start_puppets(job)
    zero.declare(0, "grad")
    assert zero.push(0, 0, 1) == "TALLY_OK"
    assert one.finish() == 0
    status, words = sentence(zero.wait(0))
    assert status == "TALLY_EFAILED"
    assert re.match(dead_name("worker", one.process), words), words
    close_all(zero)
    job.wait_all(15)


# ---------------------------------------------------------------------------------------------------
# Stalls

@pytest.mark.sanitize
def test_a_worker_that_stops_a_step_early_is_named_after_the_warning_limit_and_fails_the_job(make_job):
    job = make_job(workers=3, servers=2, env={"TALLY_STALL_WARN_MS": "300", "TALLY_STALL_LIMIT_MS": "2000"})
    scheduler, servers, puppets = start_puppets(job)
    zero, one, two = puppets
    for puppet in puppets:
        puppet.declare(0, "grad", "float32", 1000000)
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    for puppet in puppets:
        assert puppet.wait(0) == "TALLY_OK"
    start = time.monotonic()
    for puppet in (zero, two):
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    for puppet in (zero, two):
        puppet.log_line(r'warn tensor "grad" round 2 has waited \d+ s for worker 1; see whether it is stuck')
    answers = {puppet.wait(0) for puppet in (zero, two)}
    assert 1.5 < time.monotonic() - start < 8
    answers.add(one.push(0, 0, 1))       # the one that is missing hears the same
    assert answers == {'TALLY_EFAILED tensor "grad" round 2: worker 1 did not take part within 2 s '
                       "(TALLY_STALL_LIMIT_MS)"}
    close_all(*puppets)
    assert set(job.wait_all().values()) == {0, 1}, str(job)


def test_a_worker_that_is_late_but_within_the_limit_only_causes_a_warning(make_job):
    job = make_job(workers=2, servers=1, env={"TALLY_STALL_WARN_MS": "200", "TALLY_STALL_LIMIT_MS": "60000"})
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad")
    assert zero.push(0, 0, 1) == "TALLY_OK"
    zero.log_line(r'tensor "grad" round 1 has waited \d+ s for worker 1')
    assert one.push(0, 0, 1) == "TALLY_OK"
    for puppet in (zero, one):
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "2"
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)


@pytest.mark.sanitize
def test_a_worker_that_is_late_in_reading_its_results_gets_exact_ones(make_job):
    """Stopped for 150 ms at random moments of 150 rounds."""
    job = make_job(workers=3, servers=2, env={"BYTEPS_PARTITION_BYTES": "4096"})
    scheduler, servers, workers = start_job(job, "--rounds", "150", "--tensors", "6", "--count", "3000", "--fresh")
    draw = random.Random(7)
    paused = 0
    while not workers[0].ends_within(draw.uniform(0, 0.03)):
        victim = draw.choice(workers)
        victim.signal(signal.SIGSTOP)
        victim.ends_within(0.15)          # it cannot end: the pause itself
        victim.signal(signal.SIGCONT)
        paused += 1
    assert set(job.wait_all(60).values()) == {0}, str(job)
    assert paused > 3
    for worker in workers:
        worker.wait_line("^exact 150 rounds")


# ---------------------------------------------------------------------------------------------------
# Dropped connections

PIDFD_GETFD = 438       # the same number on all architectures


def connections(pid):
    """The descriptors of a process that are TCP connections, established at the moment."""
    with open("/proc/%d/net/tcp" % pid) as file:
        rows = [line.split() for line in file.readlines()[1:]]
    established = {"socket:[%s]" % row[9] for row in rows if row[3] == "01"}
    found = []
    for entry in os.listdir("/proc/%d/fd" % pid):
        try:
            if os.readlink("/proc/%d/fd/%s" % (pid, entry)) in established:
                found.append(int(entry))
        except OSError:
            pass         # closed meanwhile
    return found


def drop(pid, fd):
    """End a connection of another process, as a network would. False: it was gone already."""
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, fd, 0)
        if copy < 0 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
            pytest.skip("no right to take another process's connection")
        if copy < 0:
            return False
        with socket.socket(fileno=copy) as connection:
            connection.shutdown(socket.SHUT_RDWR)
        return True
    except OSError:
        return False
    finally:
        os.close(process)


@pytest.mark.sanitize
@pytest.mark.parametrize("ends", ["workers", "servers"])
def test_dropped_connections_lose_nothing_and_double_nothing(make_job, ends):
    """Connections to servers, and to the scheduler too, at random moments."""
    job = make_job(workers=3, servers=2, env={"BYTEPS_PARTITION_BYTES": "4096"})
    scheduler, servers, workers = start_job(job, "--rounds", "150", "--tensors", "6", "--count", "6000", "--barrier")
    workers[0].wait_line("^round 1$")
    draw = random.Random(ends)
    dropped = 0
    while dropped < 25 and not workers[0].ends_within(0.01):
        victim = draw.choice(workers if ends == "workers" else servers)
        try:
            candidates = connections(victim.pid)
        except OSError:
            break            # it has ended
        if candidates:
            dropped += drop(victim.pid, draw.choice(candidates))
    assert set(job.wait_all(90).values()) == {0}, str(job)
    assert dropped > 3
    for worker in workers:
        worker.wait_line("^exact 150 rounds")


# ---------------------------------------------------------------------------------------------------
# Disagreements

@pytest.mark.sanitize
@pytest.mark.parametrize("one_declares, words", [
    (("float64", 1000, "sum"), ("float32 x 1000 (sum)", "float64 x 1000 (sum)")),
    (("float32", 1001, "sum"), ("float32 x 1000 (sum)", "float32 x 1001 (sum)")),
    (("float32", 1000, "average"), ("float32 x 1000 (sum)", "float32 x 1000 (average)")),
])
def test_workers_that_declare_a_tensor_differently_all_hear_both_values(make_job, one_declares, words):
    job = make_job(workers=3, servers=2)
    scheduler, servers, puppets = start_puppets(job)
    for rank, puppet in enumerate(puppets):
        dtype, count, op = one_declares if rank == 1 else ("float32", 1000, "sum")
        assert puppet.declare(0, "grad", dtype, count, op) == "TALLY_OK"
        assert puppet.declare(1, "next") == "TALLY_OK"
    for puppet in puppets:
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    answers = {puppet.wait(0) for puppet in puppets}
    assert len(answers) == 1, answers
    status, said = sentence(answers.pop())
    assert status == "TALLY_ECONFLICT" and 'tensor "grad"' in said
    assert all(word in said for word in words), said
    assert re.search(r"worker [02] declared .*worker 1 declared|worker 1 declared .*worker [02] declared", said), said
    for puppet in puppets:       # nothing else is disturbed
        assert puppet.push(1, 1, 3) == "TALLY_OK"
    for puppet in puppets:
        assert puppet.wait(1) == "TALLY_OK" and puppet.value(1) == "9"
    for puppet in puppets:       # and it stays so
        assert puppet.push(0, 0, 1) == "TALLY_OK"
        assert puppet.wait(0) == "TALLY_ECONFLICT " + said
    close_all(*puppets)
    assert set(job.wait_all().values()) == {0}, str(job)


@pytest.mark.sanitize
def test_workers_that_disagree_about_a_round_all_hear_both_values_and_the_next_round_works(make_job):
    job = make_job(workers=2, servers=2, env={"BYTEPS_PARTITION_BYTES": "4096"})
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", 10000)
    assert zero.broadcast(0, 0, 0, 5) == "TALLY_OK"
    assert one.broadcast(0, 0, 1, 6) == "TALLY_OK"
    answers = {puppet.wait(0) for puppet in (zero, one)}
    assert answers <= {'TALLY_ECONFLICT tensor "grad" round 1: worker 0 broadcasts from root 0, worker 1 from root 1',
                       'TALLY_ECONFLICT tensor "grad" round 1: worker 1 broadcasts from root 1, worker 0 from root 0'}
    assert len(answers) == 1, answers
    assert zero.broadcast(0, 0, 0, 5) == "TALLY_OK"
    assert one.push(0, 0, 6) == "TALLY_OK"
    answers = {puppet.wait(0) for puppet in (zero, one)}
    assert answers <= {'TALLY_ECONFLICT tensor "grad" round 2: worker 0 called broadcast, worker 1 called push_pull',
                       'TALLY_ECONFLICT tensor "grad" round 2: worker 1 called push_pull, worker 0 called broadcast'}
    assert len(answers) == 1, answers
    for puppet in (zero, one):
        assert puppet.push(0, 0, 4) == "TALLY_OK"
    for puppet in (zero, one):
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "8"
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_a_worker_that_contradicts_itself_is_told_at_once(make_job):
    job = make_job(workers=2, servers=1)
    scheduler, servers, (zero, one) = start_puppets(job)
    assert zero.declare(0, "grad", "float32", 1000) == "TALLY_OK"
    assert zero.declare(1, "grad", "float32", 1000) == "TALLY_OK"
    assert zero.declare(2, "grad", "float32", 2000) == (
        'TALLY_ECONFLICT tensor "grad": this worker (0) declared float32 x 1000 (sum) before, and now float32 x 2000 (sum)')
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_a_name_twice_in_flight_fails_the_second_and_spares_the_first(make_job):
    job = make_job(workers=2, servers=1)
    scheduler, servers, (zero, one) = start_puppets(job)
    for puppet in (zero, one):
        puppet.declare(0, "grad")
    zero.declare(1, "grad")      # another handle of the same tensor
    assert zero.push(0, 0, 1) == "TALLY_OK"
    assert zero.push(1, 1, 1) == 'TALLY_EBUSY tensor "grad" has a request in flight already'
    assert zero.ask("undeclare", 1) == 'TALLY_EBUSY tensor "grad" has a request in flight'
    assert one.push(0, 0, 1) == "TALLY_OK"
    for puppet in (zero, one):
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "2"
    assert zero.push(1, 1, 1) == "TALLY_OK" and one.push(0, 0, 3) == "TALLY_OK"
    assert zero.wait(1) == "TALLY_OK" and zero.value(1) == "4"
    assert one.wait(0) == "TALLY_OK"
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)
