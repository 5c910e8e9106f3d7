/* replay.c - gives each file of a folder to a fuzz target once, for where there is no fuzzer. Prints how
 * many; a folder without files is an error, because it proves nothing. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_MAX (1 << 20)

static bool replay(const char *path)
{
    static uint8_t data[INPUT_MAX];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return false;
    }
    size_t len_bytes = fread(data, 1, sizeof data, file);
    bool good = !ferror(file);
    fclose(file);
    if (good)
        LLVMFuzzerTestOneInput(data, len_bytes);
    return good;
}

int main(int argc, char **argv)
{
    char path[4096];
    int count = 0;
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (!replay(path))
            return 1;
        count++;
    }
    closedir(folder);
    printf("%s: %d inputs\n", argv[1], count);
    return count == 0;
}
