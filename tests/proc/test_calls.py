"""What calls promise beside sums: waits, completion functions, forks, signals, descriptors."""
import os
import re
import signal
import time

import pytest

from job import program
from puppet import Puppet, close_all, sentence, start_all


@pytest.fixture
def pair(make_job):
    """Two workers and a server; at the end they close and all end well."""
    job = make_job(workers=2, servers=1)
    job.start_scheduler()
    job.start_server()
    puppets = Puppet(job, 0), Puppet(job, 1)
    start_all(*puppets)
    yield puppets
    close_all(*puppets)
    assert set(job.wait_all().values()) == {0}, str(job)


# ---------------------------------------------------------------------------------------------------
# Waits

@pytest.mark.sanitize
def test_a_wait_that_times_out_leaves_the_request_alive(pair):
    zero, one = pair
    for puppet in pair:
        puppet.declare(0, "grad")
    assert zero.push(0, 0, 1) == "TALLY_OK"
    assert zero.ask("test", 0) == "TALLY_EAGAIN not finished yet"
    assert zero.wait(0, 0) == 'TALLY_ETIMEDOUT tensor "grad": the request did not end within 0 ms and goes on'
    assert zero.wait(0, 50) == 'TALLY_ETIMEDOUT tensor "grad": the request did not end within 50 ms and goes on'
    assert one.push(0, 0, 2) == "TALLY_OK"
    for puppet in pair:
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "3"
        assert puppet.wait(0).startswith("TALLY_EINVAL")     # it is freed


@pytest.mark.sanitize
def test_a_barrier_that_times_out_names_who_is_missing_and_is_the_same_one_next_time(pair):
    zero, one = pair
    status, words = sentence(zero.barrier(1500))
    assert status == "TALLY_ETIMEDOUT"
    assert words == "the barrier was not reached by all within 1500 ms: worker 1 has not reached the barrier"
    assert one.barrier() == "TALLY_OK"
    assert zero.barrier() == "TALLY_OK"
    waiting = one.say("barrier", 0, -1)
    assert zero.barrier() == "TALLY_OK"
    assert one.reply(waiting) == "TALLY_OK"


def test_requests_may_end_in_another_order_than_they_began(pair):
    zero, one = pair
    for puppet in pair:
        for number in range(4):
            puppet.declare(number, "layer%d" % number)
    for number in range(4):
        assert zero.push(number, number, 1) == "TALLY_OK"
    for number in (2, 0, 3, 1):
        assert one.push(number, number, number) == "TALLY_OK"
        assert one.wait(number) == "TALLY_OK"
        assert zero.wait(number) == "TALLY_OK" and zero.value(number) == str(1 + number)


# ---------------------------------------------------------------------------------------------------
# Completion functions

@pytest.mark.sanitize
def test_completion_functions_run_once_in_the_order_in_which_requests_end(pair):
    zero, one = pair
    order = [3, 1, 4, 0, 2]
    for puppet in pair:
        for number in range(5):
            puppet.declare(number, "layer%d" % number)
    for number in range(5):
        assert zero.push(number, number, 1) == "TALLY_OK"
        assert zero.ask("on_done", number) == "TALLY_OK"
    for number in order:
        assert one.push(number, number, 1) == "TALLY_OK"
        assert one.wait(number) == "TALLY_OK"
    zero.line(r"^done %d TALLY_OK -$" % order[-1])
    assert re.findall(r"^done (\d) TALLY_OK -$", zero.process.text("stdout"), re.MULTILINE) == list(map(str, order))


@pytest.mark.sanitize
def test_a_completion_function_for_a_request_that_has_ended_runs_too(pair):
    zero, one = pair
    for puppet in pair:
        puppet.declare(0, "grad")
        puppet.declare(1, "next")
    for number in range(2):
        for puppet in pair:
            assert puppet.push(number, number, 1) == "TALLY_OK"
        assert one.wait(number) == "TALLY_OK"
    assert zero.wait(1) == "TALLY_OK"       # so that 0, of the same server, has ended too
    assert zero.ask("on_done", 0) == "TALLY_OK"
    zero.line(r"^done 0 TALLY_OK -$")
    assert zero.value(0) == "2"


@pytest.mark.sanitize
@pytest.mark.parametrize("call", ["wait", "barrier", "close"])
def test_a_completion_function_may_issue_but_not_wait(pair, call):
    zero, one = pair
    for puppet in pair:
        puppet.declare(0, "grad")
    assert zero.push(0, 0, 1) == "TALLY_OK"
    assert zero.ask("on_done", 0, 0, call) == "TALLY_OK"
    assert one.push(0, 0, 2) == "TALLY_OK"
    zero.line(r"^done 0 TALLY_OK -$")
    zero.line(r"^inside %s TALLY_EINVAL$" % call)
    assert one.wait(0) == "TALLY_OK"
    if call == "wait":       # it has pushed its input, 1, again
        zero.line(r"^inside push TALLY_OK$")
        assert one.push(0, 0, 5) == "TALLY_OK"
        assert one.wait(0) == "TALLY_OK" and one.value(0) == "6"
        zero.process.wait_line(r"^done 0 TALLY_OK -$", stream="stdout",
                               start=1 + [line for _, line in zero.process.lines].index(b"done 0 TALLY_OK -\n"))
        assert zero.value(0) == "6"


@pytest.mark.sanitize
def test_closing_calls_every_completion_function_that_is_left(make_job):
    job = make_job(workers=2, servers=1)
    job.start_scheduler()
    job.start_server()
    zero, one = Puppet(job, 0), Puppet(job, 1)
    start_all(zero, one)
    for number in range(20):
        zero.declare(number, "layer%d" % number, "float32", 10000)
        assert zero.push(number, number, 1) == "TALLY_OK"
        assert zero.ask("on_done", number) == "TALLY_OK"
    closing = zero.say("close", 0)
    assert zero.reply(closing) == "TALLY_OK"
    lines = zero.process.text("stdout").splitlines()
    done = [line for line in lines if line.startswith("done ")]
    assert sorted(int(line.split()[1]) for line in done) == list(range(20))
    assert all("TALLY_ECLOSED" in line for line in done)
    assert lines.index("close TALLY_OK") > lines.index(done[-1])     # never after close has returned
    assert zero.finish() == 0
    close_all(one)
    assert set(job.wait_all().values()) == {0}, str(job)


# ---------------------------------------------------------------------------------------------------
# Forks

@pytest.mark.sanitize
def test_a_forked_childs_calls_fail_and_its_exit_touches_nothing(pair):
    zero, one = pair
    for puppet in pair:
        puppet.declare(0, "grad", "float32", 100000)
    assert zero.push(0, 0, 1) == "TALLY_OK"        # in flight while the child lives
    start = len(zero.process.lines)
    assert zero.ask("fork", 0, 0, 0) == "0"        # the child's exit status
    said = [line.decode() for _, line in zero.process.lines[start:] if line.startswith(b"child")]
    for call in ("declare", "push_pull", "broadcast", "test", "wait", "on_done", "undeclare", "barrier", "close"):
        answers = [line for line in said if line.startswith("child %s " % call)]
        assert answers == ["child %s TALLY_EFORKED this process was forked from the one that opened the context "
                           "(worker 0); only that one may use it\n" % call]
    assert one.push(0, 0, 2) == "TALLY_OK"
    for puppet in pair:
        assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == "3"


# ---------------------------------------------------------------------------------------------------
# Signals

def test_the_host_programs_signals_are_its_own(make_job):
    """Handlers and mask stay as they were, every thread of the library blocks all signals, and a storm
    of signals disturbs no call."""
    job = make_job(workers=2, servers=1)
    job.start_scheduler()
    job.start_server()
    zero, one = Puppet(job, 0), Puppet(job, 1)
    assert zero.ask("signals") == "TALLY_OK"
    start_all(zero, one)
    for puppet in (zero, one):
        puppet.declare(0, "grad", "float32", 1000000)
    sent = 0
    for step in range(20):
        waiting = []
        for puppet in (zero, one):
            assert puppet.push(0, 0, step) == "TALLY_OK"
        waiting = zero.say("wait", 0, -1)
        for number in (signal.SIGALRM, signal.SIGUSR1):
            for _ in range(5):
                zero.process.signal(number)
                sent += 1
        assert zero.reply(waiting) == "TALLY_OK" and one.wait(0) == "TALLY_OK"
        assert zero.value(0) == str(2 * step)
    assert zero.ask("on_done", 0).startswith("TALLY_EINVAL")         # nothing is in flight
    assert zero.push(0, 0, 1) == "TALLY_OK" and zero.ask("on_done", 0) == "TALLY_OK"   # starts its thread
    assert one.push(0, 0, 1) == "TALLY_OK" and one.wait(0) == "TALLY_OK"
    zero.line("^done 0 TALLY_OK")
    assert zero.ask("unchanged") == "0 0"
    assert 20 <= int(zero.ask("alarms")) <= sent
    close_all(zero, one)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_the_library_starts_its_threads_with_all_signals_blocked_also_when_alone(job):
    puppet = Puppet(job, 0, role=None)
    assert puppet.ask("signals") == "TALLY_OK"
    assert puppet.ask("open", 0, "DMLC_NUM_WORKER=1").startswith("TALLY_OK")
    assert puppet.ask("unchanged") == "0 0"
    assert puppet.close() == "TALLY_OK"
    assert puppet.ask("unchanged") == "0 0"
    assert puppet.finish() == 0


# ---------------------------------------------------------------------------------------------------
# Descriptors and threads

def test_opening_and_closing_leaves_no_descriptor_and_no_thread(make_job):
    puppet, counts = None, []
    for cycle in range(4):
        job = make_job(workers=2, servers=2)
        job.start_scheduler()
        job.start_server()
        job.start_server()
        if not puppet:
            puppet = Puppet(job, 0)
        other = Puppet(job, 1)
        opening = other.say("open", 0)
        assert puppet.ask("open", 0, "DMLC_PS_ROOT_PORT=%d" % job.port, "DMLC_NUM_SERVER=2").startswith("TALLY_OK")
        assert other.reply(opening).startswith("TALLY_OK")
        for each in (puppet, other):
            each.declare(0, "grad")
            assert each.push(0, 0, 1) == "TALLY_OK"
        assert puppet.ask("on_done", 0) == "TALLY_OK"
        puppet.line("^done 0 TALLY_OK")
        assert other.wait(0) == "TALLY_OK"
        assert puppet.close() == "TALLY_OK"
        assert puppet.ask("undeclare", 0) == "TALLY_OK"     # handles outlive the context
        counts.append(puppet.ask("counts"))
        close_all(other)
        job.processes = [process for process in job.processes if process is not puppet.process] + [puppet.process]
        assert all(process.wait() == 0 for process in job.processes if process is not puppet.process), str(job)
    assert len(set(counts)) == 1, counts
    assert puppet.finish() == 0


def test_opening_in_vain_leaves_no_descriptor_and_no_thread(make_job):
    job = make_job(workers=2, servers=1)
    scheduler = job.start_scheduler()
    puppet = Puppet(job, 0, {"TALLY_START_LIMIT_MS": "100"})
    counts = set()
    for _ in range(4):
        assert puppet.ask("open", 0, "DMLC_WORKER_ID=7").startswith("TALLY_ECONFIG")
        assert puppet.ask("open", 0, "DMLC_NUM_WORKER=9").startswith("TALLY_EREFUSED")
        assert puppet.ask("open", 0, "DMLC_PS_ROOT_PORT=1").startswith("TALLY_ETIMEDOUT")
        counts.add(puppet.ask("counts"))
    assert len(counts) == 1, counts
    assert puppet.finish() == 0
    scheduler.signal(signal.SIGTERM)
    assert scheduler.wait() == 1


def test_a_program_that_the_host_starts_inherits_nothing(pair):
    zero, one = pair
    for puppet in pair:
        puppet.declare(0, "grad")
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    assert zero.wait(0) == one.wait(0) == "TALLY_OK"
    assert zero.ask("inherited") == "0 1 2 3"      # 3: the folder that ls reads


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_role_opens_everything_close_on_exec(make_job, role):
    job = make_job(workers=2, servers=1)
    scheduler, server = job.start_scheduler(), job.start_server()
    puppets = Puppet(job, 0), Puppet(job, 1)
    start_all(*puppets)
    pid = {"scheduler": scheduler, "server": server}[role].pid
    open_ones = []
    for entry in os.listdir("/proc/%d/fdinfo" % pid):
        with open("/proc/%d/fdinfo/%s" % (pid, entry)) as file:
            flags = int(re.search(r"^flags:\s*([0-7]+)", file.read(), re.MULTILINE).group(1), 8)
        if int(entry) > 2 and not flags & os.O_CLOEXEC:
            open_ones.append(os.readlink("/proc/%d/fd/%s" % (pid, entry)))
    assert open_ones == []
    close_all(*puppets)
    assert set(job.wait_all().values()) == {0}, str(job)


def test_an_idle_job_uses_no_processor_time(make_job):
    """All together less than 2% of a processor, over 2 s: beats only."""
    job = make_job(workers=2, servers=2)
    job.start_scheduler()
    job.start_server()
    job.start_server()
    puppets = Puppet(job, 0), Puppet(job, 1)
    start_all(*puppets)
    for puppet in puppets:
        puppet.declare(0, "grad", "float32", 1000000)
        assert puppet.push(0, 0, 1) == "TALLY_OK"
    for puppet in puppets:
        assert puppet.wait(0) == "TALLY_OK"

    def used_ticks():
        total = 0
        for process in job.processes:
            with open("/proc/%d/stat" % process.pid) as file:
                total += sum(map(int, file.read().rsplit(") ", 1)[1].split()[11:13]))
        return total

    before = used_ticks()
    assert puppets[0].barrier(2000).startswith("TALLY_ETIMEDOUT")
    assert used_ticks() - before <= 0.04 * os.sysconf("SC_CLK_TCK")
    assert puppets[1].barrier() == "TALLY_OK"
    close_all(*puppets)
    assert set(job.wait_all().values()) == {0}, str(job)
