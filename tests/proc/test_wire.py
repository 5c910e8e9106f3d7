"""Peers that speak another version, and messages that nobody sends."""
import os
import re
import socket

import pytest

from job import program
from puppet import Puppet, close_all, start_all

FOREIGN = "tests/proc/foreign"


def names_both_versions(text):
    return re.search(r"the peer speaks wire version 999, this is wire version \d+ \(Tally [\d.]+\)", text)


def test_a_node_of_another_wire_version_is_refused_with_both_named(make_job):
    job = make_job(workers=2, servers=1)
    scheduler = job.start_scheduler()
    node = job.start("foreign node", [program(FOREIGN), "node", "127.0.0.1:%d" % job.port])
    assert node.wait() == 0, str(node)
    answer = node.wait_line(r"^REFUSED TALLY_EVERSION (.*)$").group(1)
    assert names_both_versions(answer), answer
    scheduler.wait_line(r"refused a node: the peer speaks wire version 999, this is wire version \d+")
    # and those of this version find their job as if nothing had happened
    job.start_server()
    puppets = Puppet(job, 0), Puppet(job, 1)
    start_all(*puppets)
    close_all(*puppets)
    assert all(process.wait() == 0 for process in job.processes), str(job)


def test_a_scheduler_of_another_wire_version_ends_every_role_with_both_named(make_job):
    job = make_job(workers=2, servers=1)
    foreign = job.start("foreign scheduler", [program(FOREIGN), "scheduler"])
    job.port = int(foreign.wait_line(r"^listening on (\d+)$").group(1))
    server = job.start_server()
    worker = Puppet(job, 0)
    answer = worker.open()
    assert answer.startswith("TALLY_EVERSION the scheduler at tcp://127.0.0.1:%d: " % job.port), answer
    assert names_both_versions(answer), answer
    assert worker.finish() == 0
    assert server.wait() == 1
    assert names_both_versions(server.text("stderr")), str(server)
    foreign.kill()
    foreign.wait()


@pytest.mark.sanitize
def test_messages_that_nobody_sends_do_not_disturb_a_job(make_job):
    """Frames of noise and of nearly right headers, and bytes that are no frames at all, to the scheduler
    and to every shard."""
    job = make_job(workers=2, servers=2, env={"BYTEPS_SERVER_ENGINE_THREAD": "2"})
    scheduler = job.start_scheduler({"BYTEPS_LOG_LEVEL": "INFO"})
    servers = [job.start_server(), job.start_server()]
    puppets = Puppet(job, 0), Puppet(job, 1)
    start_all(*puppets)
    addresses = ["127.0.0.1:%d" % job.port] + sum((listening(server.pid) for server in servers), [])
    assert len(addresses) == 1 + 2 * 2, addresses
    for puppet in puppets:
        puppet.declare(0, "grad", "float32", 1000000)

    def exchange(value):
        for puppet in puppets:
            assert puppet.push(0, 0, value) == "TALLY_OK"
        for puppet in puppets:
            assert puppet.wait(0) == "TALLY_OK" and puppet.value(0) == str(2 * value), str(job)

    exchange(1)
    junk = [job.start("junk", [program(FOREIGN), "junk", address]) for address in addresses]
    exchange(2)
    for each in junk:
        each.wait_line("^all is out$")
        assert each.wait() == 0
    for address in addresses:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: tally\r\n\r\n" * 100)
    exchange(3)
    close_all(*puppets)
    assert all(process.wait() == 0 for process in job.processes), str(job)


def listening(pid):
    """The addresses at which a process listens."""
    inodes = set()
    for entry in listed("/proc/%d/fd" % pid):
        match = re.match(r"socket:\[(\d+)\]", entry)
        if match:
            inodes.add(match.group(1))
    with open("/proc/%d/net/tcp" % pid) as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return ["127.0.0.1:%d" % int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def listed(folder):
    found = []
    for entry in os.listdir(folder):
        try:
            found.append(os.readlink(os.path.join(folder, entry)))
        except OSError:
            pass             # closed meanwhile
    return found
