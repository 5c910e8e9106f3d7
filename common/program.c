#include "common/program.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { OPTION_USAGE = 256, OPTION_MARKDOWN }; /* no letters */

static const struct argp_option options[] = {
    { "help", '?', NULL, 0, "Print this and the settings", -1 },
    { "usage", OPTION_USAGE, NULL, 0, "Print a short usage message", -1 },
    { "version", 'V', NULL, 0, "Print the version", -1 },
    { "settings-markdown", OPTION_MARKDOWN, NULL, 0, "Print the settings of all roles as the README's table", -1 },
    { 0 },
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    tly_role role = *(const tly_role *)state->input;
    switch (key) {
    case '?':
        argp_state_help(state, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG);
        printf("\n");
        tly_config_help(stdout, role);
        exit(TLY_EXIT_GOOD);
    case OPTION_USAGE:
        argp_state_help(state, stdout, ARGP_HELP_USAGE);
        exit(TLY_EXIT_GOOD);
    case 'V':
        printf("tally-%s %s\n", tly_role_name(role), TLY_VERSION);
        exit(TLY_EXIT_GOOD);
    case OPTION_MARKDOWN:
        tly_config_markdown(stdout);
        exit(TLY_EXIT_GOOD);
    case ARGP_KEY_ARG:
        argp_usage(state);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void tly_program_arguments(int argc, char **argv, tly_role role, const char *doc)
{
    const struct argp argp = { .options = options, .parser = parse_option, .doc = doc };
    argp_err_exit_status = TLY_EXIT_CONFIG;
    argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &role);
}

void tly_program_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int tly_program_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        tly_error(TALLY_ESYSTEM, "signalfd: %s", strerror(errno));
    return fd;
}

int tly_program_signal(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

const char *tly_program_signal_name(int signal)
{
    switch (signal) {
    case SIGINT:
        return "SIGINT";
    case SIGTERM:
        return "SIGTERM";
    case SIGHUP:
        return "SIGHUP";
    default:
        return "unexpected";
    }
}
