/* A host program that does what its standard input says, one call a line, and answers each with one
 * line: the call's name, the status, and the value or the sentence. Contexts, tensors and requests
 * have small numbers. See tests/lib/puppet.py. It ends at the end of its input. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/proc/host.h"

#define MAX_THINGS 64
#define MAX_WORDS 64

typedef struct tensor {
    tally_tensor *handle;
    tally_dtype dtype;
    size_t count;
    unsigned char *input, *output;
} tensor;

static tally *contexts[MAX_THINGS];
static tensor tensors[MAX_THINGS];
static tally_request *requests[MAX_THINGS];
static char *words[MAX_WORDS + 1]; /* of the present line; ends in NULL */
static int word_count;

static long number(int word)
{
    if (word >= word_count) {
        say("%s needs a word %d", words[0], word);
        exit(4);
    }
    return strtol(words[word], NULL, 10);
}

static int place(int word)
{
    long n = number(word);
    if (n < 0 || n >= MAX_THINGS) {
        say("%s: %ld is no place", words[0], n);
        exit(4);
    }
    return (int)n;
}

static void answer(tally_status status)
{
    if (status == TALLY_OK)
        say("%s TALLY_OK", words[0]);
    else
        say("%s %s %s", words[0], tally_status_name(status), tally_last_error());
}

static void fill(tensor *t, unsigned char *to, int value)
{
    size_t size = tally_dtype_size(t->dtype);
    for (size_t i = 0; i < t->count; i++)
        host_store(t->dtype, to + i * size, value);
}

/* open CONTEXT [NAME=value ...] */
static void do_open(void)
{
    tally_options options = { .size = sizeof options, .settings = (const char *const *)words + 2 };
    tally_status status = tally_open(&options, &contexts[place(1)]);
    if (status == TALLY_OK)
        say("open TALLY_OK rank %d size %d local %d %d", tally_rank(contexts[place(1)]),
            tally_size(contexts[place(1)]), tally_local_rank(contexts[place(1)]),
            tally_local_size(contexts[place(1)]));
    else
        answer(status);
}

/* close CONTEXT */
static void do_close(void)
{
    tally_status status = tally_close(contexts[place(1)]);
    if (status == TALLY_OK)
        contexts[place(1)] = NULL;
    answer(status);
}

/* declare CONTEXT TENSOR name dtype count op priority */
static void do_declare(void)
{
    tensor *t = &tensors[place(2)];
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    tensor made = { .dtype = host_dtype(words[4]), .count = (size_t)number(5) };
    options.op = host_op(words[6]);
    options.priority = (int)number(7);
    tally_status status = tally_declare(contexts[place(1)], words[3], made.dtype, made.count, &options,
                                        &made.handle);
    if (status == TALLY_OK) {
        size_t bytes = made.count * tally_dtype_size(made.dtype);
        made.input = malloc(bytes);
        made.output = malloc(bytes);
        *t = made;
    }
    answer(status);
}

/* undeclare TENSOR: its buffers go too */
static void do_undeclare(void)
{
    tensor *t = &tensors[place(1)];
    tally_status status = tally_undeclare(&t->handle);
    if (status == TALLY_OK) {
        free(t->input);
        free(t->output);
        t->input = t->output = NULL;
    }
    answer(status);
}

/* push TENSOR REQUEST value [priority]: out of place, the output is all -1 before */
static void do_push(void)
{
    tensor *t = &tensors[place(1)];
    fill(t, t->input, (int)number(3));
    fill(t, t->output, -1);
    int priority = word_count > 4 ? (int)number(4) : TALLY_PRIORITY_DEFAULT;
    answer(tally_push_pull(t->handle, t->input, t->output, priority, &requests[place(2)]));
}

/* again TENSOR REQUEST: push what is there, into what is there */
static void do_again(void)
{
    tensor *t = &tensors[place(1)];
    answer(tally_push_pull(t->handle, t->input, t->output, TALLY_PRIORITY_DEFAULT, &requests[place(2)]));
}

/* broadcast TENSOR REQUEST root value */
static void do_broadcast(void)
{
    tensor *t = &tensors[place(1)];
    fill(t, t->output, (int)number(4));
    answer(tally_broadcast(t->handle, t->output, (int)number(3), &requests[place(2)]));
}

/* test REQUEST */
static void do_test(void)
{
    answer(tally_test(&requests[place(1)]));
}

/* wait REQUEST timeout_ms */
static void do_wait(void)
{
    answer(tally_wait(&requests[place(1)], (int)number(2)));
}

/* barrier CONTEXT timeout_ms */
static void do_barrier(void)
{
    answer(tally_barrier(contexts[place(1)], (int)number(2)));
}

/* value TENSOR: of the output, which must be the same everywhere */
static void do_value(void)
{
    const tensor *t = &tensors[place(1)];
    size_t size = tally_dtype_size(t->dtype);
    double first = t->count ? host_load(t->dtype, t->output) : 0;
    for (size_t i = 1; i < t->count; i++)
        if (host_load(t->dtype, t->output + i * size) != first) {
            say("value %g and, from element %zu on, %g", first, i, host_load(t->dtype, t->output + i * size));
            return;
        }
    say("value %g", first);
}

typedef struct waiting {
    int request;
    char *refused; /* what the function is to try: "wait", "barrier" or "close"; or NULL */
    tally *ctx;
} waiting;

/* Passed before each call and in completion functions: who is told of an end by a line and then looks at
 * the output would otherwise seem to race with it. */
static pthread_mutex_t told = PTHREAD_MUTEX_INITIALIZER;

/* Says what came; then what a call answers that may not be made from here. */
static void done(void *arg, tally_status status, const char *error)
{
    waiting *w = arg;
    pthread_mutex_lock(&told);
    pthread_mutex_unlock(&told);
    say("done %d %s %s", w->request, tally_status_name(status), error ? error : "-");
    if (w->refused && strcmp(w->refused, "barrier") == 0)
        say("inside barrier %s", tally_status_name(tally_barrier(w->ctx, -1)));
    else if (w->refused && strcmp(w->refused, "close") == 0)
        say("inside close %s", tally_status_name(tally_close(w->ctx)));
    else if (w->refused) {
        tally_request *own = NULL;
        tensor *t = &tensors[0];
        tally_status issued = tally_push_pull(t->handle, t->input, t->output, 0, &own);
        say("inside push %s", tally_status_name(issued));
        say("inside wait %s", tally_status_name(own ? tally_wait(&own, -1) : TALLY_OK));
        tally_on_done(&own, done, calloc(1, sizeof *w));
    }
    free(w->refused);
    free(w);
}

/* on_done REQUEST [CONTEXT what]: the completion has a line of its own, see done */
static void do_on_done(void)
{
    waiting *w = calloc(1, sizeof *w);
    w->request = place(1);
    if (word_count > 3) {
        w->ctx = contexts[place(2)];
        w->refused = strdup(words[3]);
    }
    tally_status status = tally_on_done(&requests[place(1)], done, w);
    if (status != TALLY_OK) {
        free(w->refused);
        free(w);
    }
    answer(status);
}

static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* counts: descriptors and threads of this process */
static void do_counts(void)
{
    say("counts %d %d", entries("/proc/self/fd"), entries("/proc/self/task"));
}

/* inherited: the descriptors that a program sees which this one starts */
static void do_inherited(void)
{
    int ends[2];
    char text[4096];
    size_t used = 0;
    ssize_t got;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        execl("/bin/ls", "ls", "-1", "/proc/self/fd", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)got;
    close(ends[0]);
    waitpid(child, NULL, 0);
    text[used] = 0;
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    say("inherited %s", text);
}

static void child_says(const char *call, tally_status status)
{
    say("child %s %s %s", call, tally_status_name(status), tally_last_error());
}

/* fork CONTEXT TENSOR REQUEST [alone]: every call in a child, which then exits as programs do */
static void do_fork(void)
{
    tally *ctx = contexts[place(1)];
    tensor *t = &tensors[place(2)];
    tally_request *own = requests[place(3)], *made = NULL;
    tally_tensor *handle = NULL;
    pid_t child = fork();
    if (child == 0) {
        child_says("declare", tally_declare(ctx, "child", TALLY_DTYPE_F32, 1, NULL, &handle));
        child_says("push_pull", tally_push_pull(t->handle, t->input, t->output, 0, &made));
        child_says("broadcast", tally_broadcast(t->handle, t->output, 0, &made));
        child_says("test", tally_test(&own));
        child_says("wait", tally_wait(&own, -1));
        child_says("on_done", tally_on_done(&own, done, NULL));
        child_says("undeclare", tally_undeclare(&t->handle));
        child_says("barrier", tally_barrier(ctx, -1));
        child_says("close", tally_close(ctx));
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("fork %d", status);
}

static volatile sig_atomic_t alarms;

static void alarmed(int number_)
{
    (void)number_;
    alarms++;
}

/* signals: handle SIGALRM and SIGUSR1, so that what changes later is seen; see checked */
static struct sigaction before[65];
static sigset_t mask_before;

static void do_signals(void)
{
    struct sigaction action = { .sa_handler = alarmed };
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 1; i < 65; i++)
        sigaction(i, NULL, &before[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
    say("signals TALLY_OK");
}

/* One thread's blocked signals, or -1 when the thread has gone. */
static int64_t blocked_of(const char *thread)
{
    char path[320], line[256];
    uint64_t blocked = UINT64_MAX;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "SigBlk: %" SCNx64, &blocked);
    if (file)
        fclose(file);
    return (int64_t)blocked;
}

/* unchanged: whether handlers and mask are as do_signals left them, and how many threads there are in
 * which a signal of the host's could arrive */
static void do_unchanged(void)
{
    int changed = 0, open_threads = 0;
    sigset_t mask;
    for (int i = 1; i < 65; i++) {
        struct sigaction now;
        if (sigaction(i, NULL, &now) == 0 && now.sa_handler != before[i].sa_handler)
            changed++;
    }
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < 65; i++)
        changed += sigismember(&mask, i) != sigismember(&mask_before, i);
    uint64_t all = 0;
    for (int i = 1; i < 65; i++) /* without what cannot be blocked, and the two that are the C library's */
        all |= i == SIGKILL || i == SIGSTOP || i == 32 || i == 33 ? 0 : 1ull << (i - 1);
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *e; folder && (e = readdir(folder));)
        if (e->d_name[0] != '.' && atoi(e->d_name) != (int)getpid())
            open_threads += ((uint64_t)blocked_of(e->d_name) & all) != all;
    closedir(folder);
    say("unchanged %d %d", changed, open_threads);
}

/* pid, and how many SIGALRM and SIGUSR1 came */
static void do_alarms(void)
{
    say("alarms %d", (int)alarms);
}

typedef struct command {
    const char *name;
    void (*run)(void);
} command;

static const command commands[] = {
    { "open", do_open },           { "close", do_close },         { "declare", do_declare },
    { "undeclare", do_undeclare }, { "push", do_push },           { "again", do_again },
    { "broadcast", do_broadcast }, { "test", do_test },           { "wait", do_wait },
    { "barrier", do_barrier },     { "value", do_value },         { "on_done", do_on_done },
    { "counts", do_counts },       { "inherited", do_inherited }, { "fork", do_fork },
    { "signals", do_signals },     { "unchanged", do_unchanged }, { "alarms", do_alarms },
};

static void obey(char *line)
{
    word_count = 0;
    for (char *rest = NULL, *word = strtok_r(line, " \n", &rest); word && word_count < MAX_WORDS;
         word = strtok_r(NULL, " \n", &rest))
        words[word_count++] = word;
    words[word_count] = NULL;
    for (size_t i = 0; word_count && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, words[0]) == 0) {
            pthread_mutex_lock(&told);
            pthread_mutex_unlock(&told);
            commands[i].run();
            return;
        }
    say("unknown call %s", word_count ? words[0] : "");
    exit(4);
}

/* The next line of what it is told; a signal in between is no end. */
static bool next_line(char *line, int size)
{
    while (!fgets(line, size, stdin)) {
        if (feof(stdin) || errno != EINTR)
            return false;
        clearerr(stdin);
    }
    return true;
}

int main(void)
{
    char line[4096];
    while (next_line(line, sizeof line))
        obey(line);
    return 0;
}
