#include "common/setting.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *tly_setting_quote(const char *value, char text[TLY_QUOTED_MAX])
{
    int cut = strlen(value) > TLY_QUOTED_MAX - 8;
    snprintf(text, TLY_QUOTED_MAX, "\"%.*s%s\"", TLY_QUOTED_MAX - 8, value, cut ? "..." : "");
    tly_log_clean(text);
    return text;
}

/* Levenshtein's distance with one row of his matrix. */
int tly_edit_distance(const char *a, const char *b)
{
    size_t m = strlen(a), n = strlen(b);
    if (m >= TLY_NAME_MAX || n >= TLY_NAME_MAX)
        return TLY_NAME_MAX;
    int row[TLY_NAME_MAX];
    for (size_t j = 0; j <= n; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int change = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            int drop = row[j] + 1, add = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < drop ? change : drop;
            if (add < row[j])
                row[j] = add;
        }
    }
    return row[n];
}

tally_status tly_setting_role(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    (void)kind;
    tly_role nearest = TLY_ROLE_NONE;
    int least = 4;
    for (int role = TLY_ROLE_SCHEDULER; role <= TLY_ROLE_WORKER; role++) {
        int distance = tly_edit_distance(value, tly_role_name(role));
        if (strcmp(value, tly_role_name(role)) == 0) {
            *(tly_role *)target = role;
            return TALLY_OK;
        }
        if (distance < least) {
            least = distance;
            nearest = role;
        }
    }
    char text[TLY_QUOTED_MAX];
    bool near = nearest != TLY_ROLE_NONE;
    return tly_error(TALLY_ECONFIG, "%s=%s is not a role; the roles are scheduler, server and worker%s%s%s",
                     row->name, tly_setting_quote(value, text), near ? "; did you mean " : "",
                     near ? tly_role_name(nearest) : "", near ? "?" : "");
}

static void role_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    (void)row, (void)kind;
    snprintf(text, len, "scheduler, server or worker");
}

static void role_show(const void *target, char *text, size_t len)
{
    snprintf(text, len, "%s", tly_role_name(*(const tly_role *)target));
}

static void int_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    snprintf(text, len, "%ld to %ld%s%s", row->zero & kind ? 0 : row->min, row->max, row->unit ? " " : "",
             row->unit ? row->unit : "");
}

static bool int_read(const char *value, long *number)
{
    const char *digits = *value == '-' ? value + 1 : value;
    if (!*digits || strspn(digits, "0123456789") != strlen(digits))
        return false;
    errno = 0;
    *number = strtol(value, NULL, 10);
    return errno == 0;
}

static tally_status int_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    long number;
    if (int_read(value, &number)
        && ((number >= row->min && number <= row->max) || (number == 0 && row->zero & kind))) {
        *(int *)target = (int)number;
        return TALLY_OK;
    }
    char range[TLY_RANGE_MAX], text[TLY_QUOTED_MAX];
    int_range(row, kind, range, sizeof range);
    return tly_error(TALLY_ECONFIG, "%s=%s is not a whole number from %s", row->name,
                     tly_setting_quote(value, text), range);
}

static void int_show(const void *target, char *text, size_t len)
{
    snprintf(text, len, "%d", *(const int *)target);
}

static tally_status bool_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    (void)kind;
    if (strcmp(value, "0") == 0 || strcmp(value, "1") == 0) {
        *(bool *)target = *value == '1';
        return TALLY_OK;
    }
    char text[TLY_QUOTED_MAX];
    return tly_error(TALLY_ECONFIG, "%s=%s is neither 0 nor 1", row->name, tly_setting_quote(value, text));
}

static void bool_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    (void)row, (void)kind;
    snprintf(text, len, "0 or 1");
}

static void bool_show(const void *target, char *text, size_t len)
{
    snprintf(text, len, "%d", *(const bool *)target);
}

/* BytePS's names, and ours; the first name of a level is the one that is shown. */
static const struct {
    const char *name;
    tally_log_level level;
} levels[] = {
    { "ERROR", TALLY_LOG_ERROR }, { "FATAL", TALLY_LOG_ERROR }, { "WARNING", TALLY_LOG_WARN },
    { "WARN", TALLY_LOG_WARN },   { "INFO", TALLY_LOG_INFO },   { "DEBUG", TALLY_LOG_DEBUG },
    { "TRACE", TALLY_LOG_TRACE },
};
#define LEVEL_COUNT (sizeof levels / sizeof *levels)

static void level_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    (void)row, (void)kind;
    snprintf(text, len, "FATAL, ERROR, WARNING, INFO, DEBUG, TRACE or 0 to 4");
}

bool tly_setting_level(const char *value, tally_log_level *level)
{
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        if (strcasecmp(value, levels[i].name) == 0) {
            *level = levels[i].level;
            return true;
        }
    }
    long number;
    if (!int_read(value, &number) || number < TALLY_LOG_ERROR || number > TALLY_LOG_TRACE)
        return false;
    *level = (tally_log_level)number;
    return true;
}

static tally_status level_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    if (tly_setting_level(value, target))
        return TALLY_OK;
    char range[TLY_RANGE_MAX], text[TLY_QUOTED_MAX];
    level_range(row, kind, range, sizeof range);
    return tly_error(TALLY_ECONFIG, "%s=%s is not a log level; it may be %s", row->name,
                     tly_setting_quote(value, text), range);
}

static void level_show(const void *target, char *text, size_t len)
{
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        if (levels[i].level == *(const tally_log_level *)target) {
            snprintf(text, len, "%s", levels[i].name);
            return;
        }
    }
}

static tally_status text_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    (void)kind;
    if (strlen(value) < row->size) {
        strcpy(target, value);
        return TALLY_OK;
    }
    char text[TLY_QUOTED_MAX];
    return tly_error(TALLY_ECONFIG, "%s=%s is longer than %zu bytes", row->name,
                     tly_setting_quote(value, text), row->size - 1);
}

static void text_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    (void)row, (void)kind;
    snprintf(text, len, "a name");
}

static void text_show(const void *target, char *text, size_t len)
{
    const char *value = target;
    snprintf(text, len, "%s", *value ? value : "(unset)");
}

/* A host as the user wrote it, taken apart. */
typedef struct host_parts {
    bool scheme, port, bracketed;
    const char *begin;
    size_t len;
} host_parts;

static bool host_split(const char *value, host_parts *parts)
{
    const char *scheme = strstr(value, "://");
    const char *begin = scheme ? scheme + 3 : value;
    const char *end = begin + strlen(begin), *rest = end;
    bool bracketed = *begin == '[';
    if (bracketed) {
        begin++;
        end = strchr(begin, ']');
        if (!end)
            return false;
        rest = end + 1;
        if (*rest && *rest != ':')
            return false;
    } else {
        /* one colon begins a port, several belong to an IPv6 address */
        const char *colon = strchr(begin, ':');
        if (colon && !strchr(colon + 1, ':'))
            end = rest = colon;
    }
    *parts = (host_parts){ scheme != NULL, *rest == ':', bracketed, begin, (size_t)(end - begin) };
    return true;
}

static bool host_valid(const char *host, bool bracketed)
{
    struct in6_addr v6;
    struct in_addr v4;
    if (strchr(host, ':')) {
        char address[INET6_ADDRSTRLEN];
        size_t len = strcspn(host, "%"); /* a scope may follow: fe80::1%eth0 */
        if (len >= sizeof address || (host[len] && !host[len + 1]))
            return false;
        memcpy(address, host, len);
        address[len] = 0;
        return inet_pton(AF_INET6, address, &v6) == 1;
    }
    if (bracketed || !*host)
        return false;
    /* The resolver would take 10.1 and 10.0.0.256 in its own ways. */
    if (strspn(host, "0123456789.") == strlen(host))
        return inet_pton(AF_INET, host, &v4) == 1;
    for (const char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-._", *c))
            return false;
    return true;
}

static tally_status host_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    (void)kind;
    char text[TLY_QUOTED_MAX], host[256];
    host_parts parts;
    if (strlen(value) >= sizeof host)
        return tly_error(TALLY_ECONFIG, "%s=%s is longer than %zu bytes", row->name,
                         tly_setting_quote(value, text), sizeof host - 1);
    bool good = host_split(value, &parts);
    if (good) {
        memcpy(host, parts.begin, parts.len);
        host[parts.len] = 0;
        good = host_valid(host, parts.bracketed);
    }
    if (!good)
        return tly_error(TALLY_ECONFIG, "%s=%s is not a host name, IPv4 or IPv6 address", row->name,
                         tly_setting_quote(value, text));
    if (parts.scheme || parts.port)
        return tly_error(TALLY_ECONFIG, "%s=%s must be a host without %s%s%s; write %s%s", row->name,
                         tly_setting_quote(value, text), parts.scheme ? "\"tcp://\" or another scheme" : "",
                         parts.scheme && parts.port ? " and without " : "", parts.port ? "a port" : "",
                         host, parts.port ? " (the scheduler's port is DMLC_PS_ROOT_PORT)" : "");
    strcpy(target, host);
    return TALLY_OK;
}

static void host_range(const tly_setting *row, unsigned kind, char *text, size_t len)
{
    (void)row, (void)kind;
    snprintf(text, len, "a host name, IPv4 or IPv6 address");
}

static bool is_off(const char *value)
{
    return !*value || strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0;
}

static void inert_notice(const tly_setting *row, const char *value, const tly_log *log)
{
    (void)value;
    tly_log_info(log, "%s has no effect in this version", row->name);
}

static void transport_notice(const tly_setting *row, const char *value, const tly_log *log)
{
    char text[TLY_QUOTED_MAX];
    if (!is_off(value))
        tly_log_warn(log, "%s=%s has no effect, the transport of this version is TCP; set it to 0",
                     row->name, tly_setting_quote(value, text));
}

static tally_status refused_parse(const tly_setting *row, unsigned kind, const char *value, void *target)
{
    (void)kind, (void)target;
    char text[TLY_QUOTED_MAX];
    if (is_off(value))
        return TALLY_OK;
    return tly_error(TALLY_ECONFIG, "%s=%s asks for %s, which this version does not have; set it to 0",
                     row->name, tly_setting_quote(value, text), row->what);
}

const tly_setting_type tly_type_role = { tly_setting_role, role_range, role_show, NULL };
const tly_setting_type tly_type_int = { int_parse, int_range, int_show, NULL };
const tly_setting_type tly_type_bool = { bool_parse, bool_range, bool_show, NULL };
const tly_setting_type tly_type_level = { level_parse, level_range, level_show, NULL };
const tly_setting_type tly_type_text = { text_parse, text_range, text_show, NULL };
const tly_setting_type tly_type_host = { host_parse, host_range, text_show, NULL };
const tly_setting_type tly_type_inert = { NULL, NULL, NULL, inert_notice };
const tly_setting_type tly_type_transport = { NULL, NULL, NULL, transport_notice };
const tly_setting_type tly_type_refused = { refused_parse, NULL, NULL, NULL };
