/* command.h - tally-bench's commands: each is a row of the table in main.c. */
#ifndef TLY_BENCH_COMMAND_H
#define TLY_BENCH_COMMAND_H

#include "common/status.h"

/* Runs a command with its own arguments; argv[0] is "tally-bench COMMAND". Wrong arguments and --help
 * end the program there, as argp does.
 * Returns: TALLY_OK; on anything else the program prints the sentence and its exit status is 1. */
typedef tally_status (*tly_command_fn)(int argc, char **argv);

tally_status tly_command_pushpull(int argc, char **argv);
tally_status tly_command_traffic(int argc, char **argv);
tally_status tly_command_exchange(int argc, char **argv);
tally_status tly_command_latency(int argc, char **argv);
tally_status tly_command_small(int argc, char **argv);
tally_status tly_command_idle(int argc, char **argv);
tally_status tly_command_limits(int argc, char **argv);
tally_status tly_command_reduce(int argc, char **argv);
tally_status tly_command_models(int argc, char **argv);

#endif
