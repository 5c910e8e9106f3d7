"""Sums of real jobs: every element of every result."""
import re

import pytest

from job import program
from puppet import Puppet, close_all, start_all

MATRIX = 8 * 4 * 2 * 2 * 8 * 2   # types, operations, in place or not, aligned or not, counts, rounds


def start_job(job, command, env=None):
    """Scheduler, servers, and the same command as every worker."""
    job.start_scheduler()
    for _ in range(job.servers):
        job.start_server()
    return [job.start_worker(rank, command, env) for rank in range(job.workers)]


def ends_well(job, limit_s=60):
    statuses = job.wait_all(limit_s)
    assert set(statuses.values()) == {0}, "%s\n%s" % (statuses, job)


@pytest.mark.parametrize("workers, servers", [
    pytest.param(workers, servers, marks=[pytest.mark.sanitize] if (workers, servers) in ((1, 1), (3, 1)) else [])
    for workers in (1, 2, 3, 4) for servers in (1, 2, 3)
])
def test_every_type_and_operation_is_exact(make_job, workers, servers):
    job = make_job(workers=workers, servers=servers,
                   env={"BYTEPS_PARTITION_BYTES": "4096", "BYTEPS_FORCE_DISTRIBUTED": "1",
                        "BYTEPS_SERVER_ENGINE_THREAD": str(servers)})
    processes = start_job(job, [program("tests/proc/matrix")])
    ends_well(job, 300)
    assert all(process.wait_line(r"^exact (\d+)$").group(1) == str(MATRIX) for process in processes)


@pytest.mark.sanitize
def test_one_worker_alone_needs_no_scheduler_and_no_server(job):
    worker = job.start("worker", [program("tests/proc/matrix")], {"DMLC_NUM_WORKER": "1", "BYTEPS_PARTITION_BYTES": "4096"})
    assert worker.wait(60) == 0, str(worker)
    assert worker.wait_line(r"^exact (\d+)$").group(1) == str(MATRIX)


def test_one_worker_with_force_distributed_waits_for_a_scheduler(job):
    worker = job.start_worker(0, [program("tests/proc/rounds"), "--rounds", "1"],
                              {"BYTEPS_FORCE_DISTRIBUTED": "1", "TALLY_START_LIMIT_MS": "300"})
    assert worker.wait() == 3
    worker.wait_line(r"^open TALLY_ETIMEDOUT no answer from the scheduler at tcp://127\.0\.0\.1:%d within 300 ms" % job.port)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype, value, op, result", [
    ("float16", 20000, "average", "20000"),
    ("bfloat16", 1, "average", "1"),
    ("float16", 60000, "average", "60000"),
    ("float16", 20000, "sum", "inf"),
    ("float16", 20000, "max", "20000"),
])
def test_eight_workers_round_16_bits_once(make_job, dtype, value, op, result):
    job = make_job(workers=8, servers=2)
    job.start_scheduler()
    job.start_server()
    job.start_server()
    puppets = [Puppet(job, rank) for rank in range(8)]
    start_all(*puppets)
    for puppet in puppets:
        puppet.declare(0, "grad", dtype, 5000, op)
        assert puppet.push(0, 0, value) == "TALLY_OK"
    for puppet in puppets:
        assert puppet.wait(0) == "TALLY_OK"
        assert puppet.value(0) == result
    close_all(*puppets)
    ends_well(job)


def test_a_tensor_of_more_than_2_to_the_31_bytes_is_exact(make_job):
    job = make_job(workers=2, servers=2)
    processes = start_job(job, [program("tests/proc/large")])
    ends_well(job, 120)
    for process in processes:
        process.wait_line(r"^exact 2147483653$")


@pytest.mark.parametrize("workers, servers, shards", [
    (2, 1, 1), pytest.param(3, 2, 2, marks=pytest.mark.sanitize), (4, 3, 4)])
def test_any_order_of_declaring_and_issuing_with_new_buffers_is_exact(make_job, workers, servers, shards):
    job = make_job(workers=workers, servers=servers,
                   env={"BYTEPS_PARTITION_BYTES": "4096", "BYTEPS_SERVER_ENGINE_THREAD": str(shards)})
    start_job(job, [program("tests/proc/rounds"), "--rounds", "20", "--tensors", "37", "--shuffle", "--fresh"])
    ends_well(job, 120)


@pytest.mark.parametrize("credit", [pytest.param("1", marks=pytest.mark.sanitize), "2", "4"])
def test_little_credit_does_not_block_workers_that_are_out_of_step(make_job, credit):
    """Each issues in an order of its own, so that their credit goes to partitions that others lack."""
    job = make_job(workers=4, servers=1, env={"BYTEPS_PARTITION_BYTES": "4096", "BYTEPS_SCHEDULING_CREDIT": credit,
                                              "BYTEPS_SERVER_ENGINE_THREAD": "1"})
    start_job(job, [program("tests/proc/rounds"), "--rounds", "10", "--tensors", "20", "--count", "40000", "--shuffle"])
    ends_well(job, 120)


def test_two_jobs_on_one_host_do_not_meet(make_job):
    jobs = [make_job(workers=2, servers=2) for _ in range(2)]
    for job in jobs:
        start_job(job, [program("tests/proc/rounds"), "--rounds", "30", "--shuffle"])
    for job in jobs:
        ends_well(job)


@pytest.mark.sanitize
def test_one_program_may_be_in_several_jobs(make_job):
    """Two jobs of two workers; one process is worker 0 of both, and alone in a third."""
    jobs = [make_job(workers=2, servers=1) for _ in range(2)]
    for job in jobs:
        job.start_scheduler()
        job.start_server()
    others = [Puppet(job, 1) for job in jobs]
    both = Puppet(jobs[0], 0)
    opening = [other.say("open", 0) for other in others]
    common = "DMLC_PS_ROOT_URI=127.0.0.1 DMLC_NUM_SERVER=1 DMLC_WORKER_ID=0".split()
    for context, job in enumerate(jobs):
        answer = both.ask("open", context, "DMLC_NUM_WORKER=2", "DMLC_PS_ROOT_PORT=%d" % job.port, *common)
        assert answer == "TALLY_OK rank 0 size 2 local 0 1"
        assert others[context].reply(opening[context]).startswith("TALLY_OK rank 1 size 2")
    assert both.ask("open", 2, "DMLC_NUM_WORKER=1").startswith("TALLY_OK rank 0 size 1")
    for context in range(3):
        assert both.ask("declare", context, context, "grad", "int32", 5000, "sum", 0) == "TALLY_OK"
        assert both.push(context, context, 10 + context) == "TALLY_OK"
    for number, other in enumerate(others):
        other.declare(0, "grad", "int32", 5000)
        assert other.push(0, 0, 100 * number) == "TALLY_OK"
        assert other.wait(0) == "TALLY_OK"
    for context, sum_of_all in enumerate(["10", "111", "12"]):
        assert both.wait(context) == "TALLY_OK"
        assert both.value(context) == sum_of_all
    # one of them closes: the others go on
    assert both.ask("close", 0) == "TALLY_OK"
    assert both.push(1, 1, 1) == "TALLY_OK"
    assert others[1].push(0, 0, 2) == "TALLY_OK"
    assert both.wait(1) == "TALLY_OK" and both.value(1) == "3"
    assert both.ask("close", 1) == "TALLY_OK" and both.ask("close", 2) == "TALLY_OK"
    assert both.finish() == 0
    close_all(*others)
    for job in jobs:
        ends_well(job)


@pytest.mark.sanitize
def test_a_broadcast_gives_everyone_the_roots_value(make_job):
    job = make_job(workers=3, servers=2, env={"BYTEPS_PARTITION_BYTES": "4096"})
    job.start_scheduler()
    job.start_server()
    job.start_server()
    puppets = [Puppet(job, rank) for rank in range(3)]
    start_all(*puppets)
    for rank, puppet in enumerate(puppets):
        puppet.declare(0, "weights", "float32", 10000)
    for root in range(3):
        for rank, puppet in enumerate(puppets):
            assert puppet.broadcast(0, 0, root, 7 * root + rank) == "TALLY_OK"
        for puppet in puppets:
            assert puppet.wait(0) == "TALLY_OK"
            assert puppet.value(0) == str(7 * root + root)
        for rank, puppet in enumerate(puppets):   # push_pulls of the same tensor in between
            assert puppet.push(0, 0, rank) == "TALLY_OK"
        for puppet in puppets:
            assert puppet.wait(0) == "TALLY_OK"
            assert puppet.value(0) == "3"
    close_all(*puppets)
    ends_well(job)


@pytest.mark.parametrize("model, limit", [("vgg16", 1.05), ("resnet50", 1.10)])
def test_a_model_loads_eight_servers_evenly(job, model, limit):
    launched = job.start("launch", [program("tally-launch"), "--local", "--workers", "2", "--servers", "8", "--",
                                    program("tally-bench"), "traffic", "--model", model, "--steps", "1", "--warmup", "0",
                                    "--compute", "none"], {"BYTEPS_SERVER_ENGINE_THREAD": "1"})
    assert launched.wait(120) == 0, str(launched)
    ratios = [float(number) for line in re.findall(r"max/mean(.*)", launched.text("stdout"))
              for number in re.findall(r"[\d.]+", line)]
    assert ratios and max(ratios) <= limit and min(ratios) >= 1, str(launched)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_small_urgent_tensor_overtakes_a_large_one(make_job, servers):
    """Within a tenth of the time of 400 MB; the large one's own priority is 0."""
    job = make_job(workers=2, servers=servers)
    processes = start_job(job, [program("tests/proc/priority"), "10"])
    ends_well(job, 120)
    for process in processes:
        times = [tuple(map(int, pair)) for pair in re.findall(r"large (\d+) small (\d+)", process.text("stdout"))]
        assert len(times) == 3
        assert sorted(small / large for large, small in times)[1] < 0.1, times
