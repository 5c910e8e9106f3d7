/* golden.h - the bytes of the wire format, as they stand in tests/data/NAME.hex and must stay.
 *
 * A file has one entry per message: its name at the start of a line, then its bytes in hexadecimal,
 * in groups that are the fields, on as many lines as it takes; later lines begin with a space. '#'
 * begins a comment. `test_wire --update` writes the files anew: do that only together with a change
 * of TLY_WIRE_VERSION, and read the difference field by field against common/wire.h. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read one entry of a file into out (at most room bytes).
 * Returns: its length in bytes, 0 when there is none */
size_t golden_read(const char *path, const char *name, uint8_t *out, size_t room);

/* Append one entry. groups: lengths of the fields, ended by 0; the last but one repeats. */
bool golden_append(const char *path, const char *name, const uint8_t *data, size_t len_bytes,
                   const int *groups);

#endif
