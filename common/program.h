/* program.h - what the main programs of scheduler and server have in common. These functions may end
 * the process; the library never calls them. */
#ifndef TLY_PROGRAM_H
#define TLY_PROGRAM_H

#include "common/config.h"

enum { TLY_EXIT_GOOD = 0, TLY_EXIT_JOB_FAILED = 1, TLY_EXIT_CONFIG = 2 };

/* Handle --help, --usage, --version and --settings-markdown (print and exit with 0), refuse the rest
 * (exits with 2). */
void tly_program_arguments(int argc, char **argv, tly_role role, const char *doc);

/* Open what is closed of the standard streams on /dev/null: a socket that got such a number would
 * be written to by mistake. */
void tly_program_streams(void);

/* Block SIGINT, SIGTERM and SIGHUP, before any thread is started, and return a descriptor that tells
 * of them. Returns: a signalfd, close-on-exec; -1 with the sentence set. */
int tly_program_signals(void);

/* The signal that the descriptor has, 0 for none; its name ("SIGTERM"). */
int tly_program_signal(int fd);
const char *tly_program_signal_name(int signal);

#endif
