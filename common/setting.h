/* setting.h - what one setting is, and how values of each type are read and shown.
 *
 * A row of config.c's table is a tly_setting; its type is a table of functions. A parse function words
 * the error with name, value and range. All of it is pure; any thread may call. */
#ifndef TLY_SETTING_H
#define TLY_SETTING_H

#include <stddef.h>

#include "common/config.h"

/* Names of settings are shorter. */
#define TLY_NAME_MAX 64

/* A value in quotes fits; longer ones are cut. */
#define TLY_QUOTED_MAX 128

/* A range in words fits. */
#define TLY_RANGE_MAX 128

typedef struct tly_setting tly_setting;

/* How values of one type are read and shown. Absent functions: nothing to do, nothing to show. */
typedef struct tly_setting_type {
    /* value is not empty; target lies in the tly_config */
    tally_status (*parse)(const tly_setting *row, unsigned kind, const char *value, void *target);
    void (*range)(const tly_setting *row, unsigned kind, char *text, size_t len);
    void (*show)(const void *target, char *text, size_t len);
    /* say what a set value does, or does not */
    void (*notice)(const tly_setting *row, const char *value, const tly_log *log);
} tly_setting_type;

struct tly_setting {
    const char *name;
    const tly_setting_type *type;
    size_t offset, size;  /* in the tly_config */
    long min, max;        /* of a number */
    unsigned zero;        /* kinds for which 0 is good too */
    unsigned needed;      /* kinds that cannot do without */
    unsigned used;        /* kinds to which it matters */
    const char *fallback; /* the value when unset; NULL: none */
    const char *unit;     /* of a number; NULL: a count */
    const char *what;     /* completes "a worker needs ..." */
    const char *more;     /* for the help; may be NULL */
};

extern const tly_setting_type tly_type_role;
extern const tly_setting_type tly_type_int;
extern const tly_setting_type tly_type_bool;  /* 0 or 1 */
extern const tly_setting_type tly_type_level; /* of the log */
extern const tly_setting_type tly_type_text;
extern const tly_setting_type tly_type_host;  /* name or address; brackets are taken off */
/* Names that have an effect in BytePS but none here: on whatever, on the transport, on results. */
extern const tly_setting_type tly_type_inert;
extern const tly_setting_type tly_type_transport; /* said with a warning unless off */
extern const tly_setting_type tly_type_refused;   /* an error unless off */

/* Read a role or a log level. Returns TALLY_OK or TALLY_ECONFIG; true or false. */
tally_status tly_setting_role(const tly_setting *row, unsigned kind, const char *value, void *target);
bool tly_setting_level(const char *value, tally_log_level *level);

/* A value as it stands in a sentence: in quotes, cut when long, control characters replaced. */
const char *tly_setting_quote(const char *value, char text[TLY_QUOTED_MAX]);

/* How many letters must be changed, added or dropped to make b of a, whatever their case. Names of
 * TLY_NAME_MAX bytes and more are TLY_NAME_MAX away. */
int tly_edit_distance(const char *a, const char *b);

#endif
