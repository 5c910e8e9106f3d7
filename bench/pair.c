#include "bench/pair.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a side ended. In shared memory, before the values. */
typedef struct outcome {
    int said; /* 0: not yet */
    tally_status status;
    char sentence[TLY_SENTENCE_MAX];
} outcome;

tally_status tly_pair_tell(const tly_pair_side *side, const void *data, size_t len)
{
    ssize_t n = send(side->other_fd, data, len, MSG_NOSIGNAL);
    return n == (ssize_t)len ? TALLY_OK : tly_error(TALLY_ELEFT, "the other side has ended");
}

tally_status tly_pair_hear(const tly_pair_side *side, void *data, size_t len)
{
    ssize_t n = recv(side->other_fd, data, len, MSG_WAITALL);
    return n == (ssize_t)len ? TALLY_OK : tly_error(TALLY_ELEFT, "the other side has ended");
}

tally_status tly_pair_meet(const tly_pair_side *side)
{
    char here = 1, there;
    tally_status status = tly_pair_tell(side, &here, sizeof(here));
    return status ? status : tly_pair_hear(side, &there, sizeof(there));
}

static void run_side(tly_pair_fn fn, void *arg, tly_pair_side *side, outcome *out, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) /* it died before the call above */
        _exit(EXIT_FAILURE);
    out->status = fn(side, arg);
    snprintf(out->sentence, sizeof(out->sentence), "%s", out->status ? tly_error_text() : "");
    out->said = 1;
    _exit(EXIT_SUCCESS);
}

/* pids[i] stays 0 where there is no process. */
static tally_status start(tly_pair_fn fn, void *arg, outcome *outcomes, double *values, size_t room,
                          pid_t pids[2])
{
    int fds[2];
    pid_t self = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        return tly_error(TALLY_ESYSTEM, "a socket pair: %s", strerror(errno));
    tally_status status = TALLY_OK;
    fflush(NULL); /* or both would write it again */
    for (int i = 0; i < 2 && !status; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(fds[!i]);
            tly_pair_side side = { .index = i, .other_fd = fds[i], .values = values + (size_t)i * room };
            run_side(fn, arg, &side, &outcomes[i], self);
        }
        if (pids[i] < 0) {
            pids[i] = 0;
            status = tly_error(TALLY_ESYSTEM, "fork: %s", strerror(errno));
        }
    }
    close(fds[0]);
    close(fds[1]);
    return status;
}

/* Of two failures the other side's end is the consequence. */
static tally_status judge(const outcome outcomes[2])
{
    const outcome *worst = NULL;
    for (int i = 0; i < 2; i++) {
        if (!outcomes[i].said)
            return tly_error(TALLY_EFAILED, "process %d of the measurement ended by itself", i);
        if (outcomes[i].status && (!worst || worst->status == TALLY_ELEFT))
            worst = &outcomes[i];
    }
    return worst ? tly_error(worst->status, "%s", worst->sentence) : TALLY_OK;
}

tally_status tly_pair_run(tly_pair_fn fn, void *arg, double *values, size_t room)
{
    size_t values_bytes = 2 * room * sizeof(double), bytes = 2 * sizeof(outcome) + values_bytes;
    outcome *outcomes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcomes == MAP_FAILED)
        return tly_error_memory(bytes, "a measurement");
    double *shared = (double *)(outcomes + 2);
    pid_t pids[2] = { 0 };
    tally_status status = start(fn, arg, outcomes, shared, room, pids);
    for (int i = 0; i < 2; i++)
        while (pids[i] && waitpid(pids[i], NULL, 0) < 0 && errno == EINTR)
            continue;
    if (!status)
        status = judge(outcomes);
    if (!status && values_bytes)
        memcpy(values, shared, values_bytes);
    munmap(outcomes, bytes);
    return status;
}
