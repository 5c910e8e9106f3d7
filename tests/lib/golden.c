#include "tests/lib/golden.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 36 /* data on one line */

/* The bytes of one line's text. Returns: how many */
static size_t read_line(const char *text, uint8_t *out, size_t room)
{
    size_t len_bytes = 0;
    unsigned value;
    int used;
    while (len_bytes < room && sscanf(text, " %2x%n", &value, &used) == 1) {
        out[len_bytes++] = (uint8_t)value;
        text += used;
    }
    return len_bytes;
}

size_t golden_read(const char *path, const char *name, uint8_t *out, size_t room)
{
    char line[512];
    size_t len_bytes = 0, name_len = strlen(name);
    bool inside = false;
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        const char *text = line;
        if (line[0] == '#')
            continue;
        if (!isspace((unsigned char)line[0])) {
            inside = strncmp(line, name, name_len) == 0 && line[name_len] == ' ';
            text = inside ? line + name_len : line;
        }
        if (inside)
            len_bytes += read_line(text, out + len_bytes, room - len_bytes);
    }
    fclose(file);
    return len_bytes;
}

bool golden_append(const char *path, const char *name, const uint8_t *data, size_t len_bytes,
                   const int *groups)
{
    FILE *file = fopen(path, "a");
    if (!file)
        return false;
    fputs(name, file);
    size_t on_line = 0;
    for (size_t at = 0; at < len_bytes;) {
        if (on_line >= LINE_BYTES) {
            fputs("\n   ", file);
            on_line = 0;
        }
        fputc(' ', file);
        for (int i = 0; i < groups[0] && at < len_bytes; i++, on_line++)
            fprintf(file, "%02x", data[at++]);
        if (groups[1] != 0)
            groups++;
    }
    fputc('\n', file);
    return fclose(file) == 0;
}
