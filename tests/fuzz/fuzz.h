/* fuzz.h - what the fuzz targets share: reading an input as a script of steps, and complaining.
 *
 * Each target is LLVMFuzzerTestOneInput. The input is a program for the target: a byte says what happens
 * next, the bytes after it with which values, so that a fuzzer gets past the headers quickly and a
 * found input can be read. What is missing at the end reads as 0. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/log.h"
#include "common/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

typedef struct fuzz_input {
    const uint8_t *at, *end;
} fuzz_input;

uint8_t fuzz_u8(fuzz_input *in);
uint16_t fuzz_u16(fuzz_input *in);

/* The next len bytes (fewer at the end) in a block of exactly that size, for sanitizers; *len_bytes is what
 * it got. */
uint8_t *fuzz_block(fuzz_input *in, size_t *len_bytes);

/* A data message of the script's making: by its first byte raw bytes, or a header with the given job, epoch
 * and sender and small records, whose body fits or nearly fits. Ended by fuzz_message_fini. */
typedef struct fuzz_message {
    uint8_t *frame;
    size_t len_bytes;
    tly_buf *body;
} fuzz_message;

void fuzz_message_read(fuzz_input *in, uint32_t job, uint64_t epoch, uint32_t sender, fuzz_message *message);
void fuzz_message_fini(fuzz_message *message);

/* A log whose lines are made and thrown away. */
extern const tly_log fuzz_log;

/* End the program where an invariant does not hold. */
#define FUZZ_CHECK(what) ((what) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #what))
_Noreturn void fuzz_fail(const char *file, int line, const char *what);

#endif
