/* tally-bench: measures a job, as a worker of it, and checks every value that it gets; also what a
 * job's figures are compared with. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command.h"

typedef struct command {
    const char *name, *help;
    tly_command_fn run;
} command;

static const command commands[] = {
    { "pushpull", "time push_pull over a range of sizes", tly_command_pushpull },
    { "traffic", "exchange a model's gradients, one training step after another", tly_command_traffic },
    { "exchange", "a model's gradients, all ready at once: time and cost", tly_command_exchange },
    { "latency", "round trip of one push_pull of 4 bytes", tly_command_latency },
    { "small", "many tensors of 2 KB a step, beside one of their size", tly_command_small },
    { "idle", "what a job costs that has nothing to do", tly_command_idle },
    { "limits", "this machine's copies, additions, TCP and ZeroMQ; needs no job", tly_command_limits },
    { "reduce", "the kernels that add; needs no job", tly_command_reduce },
    { "models", "list the built-in models, or check a model's file; needs no job", tly_command_models },
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

typedef struct choice {
    const command *command;
    int first_argument;
} choice;

static error_t parse(int key, char *argument, struct argp_state *state)
{
    choice *c = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < COMMAND_COUNT; i++)
            if (strcmp(commands[i].name, argument) == 0)
                c->command = &commands[i];
        if (!c->command)
            argp_error(state, "there is no command '%s'", argument);
        c->first_argument = state->next;
        state->next = state->argc; /* the rest belongs to the command */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static char *list_commands(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)text;
    char *list = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&list, &len);
    if (!out)
        return NULL;
    fputs("Commands:\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\n`tally-bench COMMAND --help` lists a command's options.\n"
          "The others run as workers of a job, for instance:\n"
          "  tally-launch --local --workers 2 --servers 2 -- tally-bench traffic --model vgg16", out);
    fclose(out);
    return list;
}

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "tally-bench %s\n", tally_version());
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "COMMAND [ARGUMENT...]",
        .doc = "Measure a Tally job and check every value.\v ",
        .help_filter = list_commands,
    };
    argp_program_version_hook = print_version;
    /* a pipe to the launcher shows lines as they are written */
    setvbuf(stdout, NULL, _IOLBF, 0);

    choice c = { 0 };
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c);
    char name[64];
    snprintf(name, sizeof(name), "tally-bench %s", c.command->name);
    char **arguments = argv + c.first_argument - 1;
    arguments[0] = name;
    tally_status status = c.command->run(argc - c.first_argument + 1, arguments);
    if (status)
        fprintf(stderr, "tally-bench: %s\n", tly_error_text());
    if (fflush(stdout) == EOF) {
        perror("tally-bench: standard output");
        return EXIT_FAILURE;
    }
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
