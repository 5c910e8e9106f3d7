/* hash.h - uthash with insertions that may fail: after one, look the item up to know. */
#ifndef TLY_HASH_H
#define TLY_HASH_H

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(item) ((void)(item))
#include <uthash.h>

#endif
