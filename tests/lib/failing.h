/* failing.h - one allocation of this thread fails, so that every path of a short memory can be walked.
 *
 * Test programs are linked so that malloc, calloc, realloc, aligned_alloc, strdup and vasprintf of our own
 * code pass through here (Makefile); the libraries' do not. */
#ifndef TESTS_FAILING_H
#define TESTS_FAILING_H

#include <stdbool.h>

/* The number-th allocation of this thread from now on fails, counted from 1. 0: none. */
void failing_arm(long number);

/* Let all succeed from now on. Returns: whether one has failed since failing_arm. */
bool failing_disarm(void);

#endif
