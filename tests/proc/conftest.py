"""What every process test finds: tests/lib on the path, and jobs that are cleaned up after it."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))

import job as job_module  # noqa: E402  (found only with the path above)


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitize: runs with the sanitizers' builds too")


@pytest.fixture
def make_job():
    """make_job(workers=..., servers=..., env=..., port=...) gives a Job. A process that is left when
    the test's body has ended is killed, and fails the test."""
    jobs = []

    def make(**keywords):
        jobs.append(job_module.Job(**keywords))
        return jobs[-1]

    yield make
    left = {job: job_module.left_over(job.mark, 2) for job in jobs}
    for job in jobs:
        job.close()
    for job, processes in left.items():
        assert not processes, "left behind: %s\n%s" % (processes, job)


@pytest.fixture
def job(make_job):
    """A job of one server and one worker."""
    return make_job()
