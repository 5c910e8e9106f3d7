#include "common/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/setting.h"

/* A job that cannot start says so in under 2 s, also where no name server answers. */
#define RESOLVE_LIMIT_MS 1500

/* A UDP socket that is connected sends nothing; any port does (discard). */
#define ROUTE_PORT 9

/* getaddrinfo cannot be given a limit: it tries each name server for many seconds. So a thread of its
 * own calls it, and is left behind when it takes too long. (glibc's getaddrinfo_a would do the same,
 * but what it works on cannot be freed while a request that was given up is still running.) The last
 * of the two to let go frees this. */
typedef struct lookup {
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t ended;
    int refs;
    bool done;
    int code;        /* of getaddrinfo */
    int system_code; /* errno, for EAI_SYSTEM */
    char numeric[TLY_NUMERIC_MAX];
    char host[]; /* written before the thread starts */
} lookup;

static lookup *lookup_create(const char *host)
{
    lookup *l = calloc(1, sizeof *l + strlen(host) + 1);
    if (!l)
        return NULL;
    strcpy(l->host, host);
    l->refs = 1;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->ended, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&l->mutex, NULL);
    return l;
}

static void lookup_put(lookup *l)
{
    pthread_mutex_lock(&l->mutex);
    int left = --l->refs;
    pthread_mutex_unlock(&l->mutex);
    if (left)
        return;
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

/* The address as text, with the scope of a link-local one. */
static int numeric_text(const struct sockaddr *address, socklen_t address_len, char *numeric, size_t len)
{
    return getnameinfo(address, address_len, numeric, (socklen_t)len, NULL, 0, NI_NUMERICHOST);
}

/* The first IPv4 address, else the first at all. AI_ADDRCONFIG stays off: on a machine with nothing
 * but loopback it would hide every address. */
static int host_lookup(const char *host, int flags, char *numeric, size_t len)
{
    struct addrinfo hints = { .ai_flags = flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    int code = getaddrinfo(host, NULL, &hints, &list);
    if (code)
        return code;
    const struct addrinfo *best = list;
    while (best && best->ai_family != AF_INET)
        best = best->ai_next;
    if (!best)
        best = list;
    code = numeric_text(best->ai_addr, best->ai_addrlen, numeric, len);
    freeaddrinfo(list);
    return code;
}

static void *lookup_run(void *arg)
{
    lookup *l = arg;
    char numeric[TLY_NUMERIC_MAX] = "";
    int code = host_lookup(l->host, 0, numeric, sizeof numeric);
    int system_code = errno;
    pthread_mutex_lock(&l->mutex);
    l->done = true;
    l->code = code;
    l->system_code = system_code;
    strcpy(l->numeric, numeric);
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->mutex);
    lookup_put(l);
    return NULL;
}

/* Returns the number of pthread_create. */
static int lookup_start(lookup *l)
{
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    l->refs++; /* the thread's */
    int code = pthread_create(&thread, &detached, lookup_run, l);
    if (code)
        l->refs--;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return code;
}

/* Wait for the end; true when it came within the limit. */
static bool lookup_wait(lookup *l, int limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&l->mutex);
    while (!l->done && pthread_cond_timedwait(&l->ended, &l->mutex, &until) != ETIMEDOUT)
        ;
    bool done = l->done;
    pthread_mutex_unlock(&l->mutex);
    return done;
}

static tally_status does_not_resolve(const char *setting, const char *host, int code, int system_code)
{
    char text[TLY_QUOTED_MAX];
    return tly_error(TALLY_ECONFIG, "%s=%s does not resolve: %s", setting, tly_setting_quote(host, text),
                     code == EAI_SYSTEM ? strerror(system_code) : gai_strerror(code));
}

static tally_status name_resolve(const char *host, const char *setting, char *numeric, size_t len)
{
    lookup *l = lookup_create(host);
    if (!l)
        return tly_error_memory(sizeof *l + strlen(host) + 1, "resolving a host name");
    tally_status status = TALLY_OK;
    char text[TLY_QUOTED_MAX];
    int code = lookup_start(l);
    if (code)
        status = tly_error(TALLY_ESYSTEM, "no thread to resolve %s=%s: %s", setting,
                           tly_setting_quote(host, text), strerror(code));
    else if (!lookup_wait(l, RESOLVE_LIMIT_MS))
        status = tly_error(TALLY_ECONFIG, "%s=%s does not resolve: no name server answered within %d ms",
                           setting, tly_setting_quote(host, text), RESOLVE_LIMIT_MS);
    else if (l->code)
        status = does_not_resolve(setting, host, l->code, l->system_code);
    else
        snprintf(numeric, len, "%s", l->numeric);
    lookup_put(l);
    return status;
}

tally_status tly_address_resolve(const char *host, const char *setting, char *numeric, size_t len)
{
    char bare[256];
    size_t host_len = strlen(host);
    if (host_len < sizeof bare && host_len > 2 && host[0] == '[' && host[host_len - 1] == ']') {
        memcpy(bare, host + 1, host_len - 2);
        bare[host_len - 2] = 0;
        host = bare;
    }
    /* Whatever /etc/hosts says, or does not. */
    if (strcasecmp(host, "localhost") == 0)
        host = "127.0.0.1";
    int code = host_lookup(host, AI_NUMERICHOST, numeric, len);
    if (!code)
        return TALLY_OK;
    /* Something with a colon is no name: its scope is unknown, or it is not an address at all. */
    if (strchr(host, ':'))
        return does_not_resolve(setting, host, code, errno);
    return name_resolve(host, setting, numeric, len);
}

void tly_address_endpoint(const char *numeric, int port, char *endpoint, size_t len)
{
    bool v6 = strchr(numeric, ':') != NULL;
    snprintf(endpoint, len, "tcp://%s%s%s:%d", v6 ? "[" : "", numeric, v6 ? "]" : "", port);
}

/* How well an interface's address serves, higher is better; 0 is no internet address. */
static int address_rank(const struct ifaddrs *entry, int family)
{
    if (!entry->ifa_addr)
        return 0;
    int own = entry->ifa_addr->sa_family;
    if (own != AF_INET && own != AF_INET6)
        return 0;
    if (own == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)entry->ifa_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
            return 1;
    }
    return own == family ? 3 : 2;
}

/* The best address of an interface, the first among equals. Returns 1 when numeric is set, 0 when the
 * interface has no address, -1 when there is no such interface. */
static int interface_address(const struct ifaddrs *all, const char *name, int family, char *numeric,
                             size_t len)
{
    const struct ifaddrs *best = NULL;
    bool exists = false;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (strcmp(entry->ifa_name, name) != 0)
            continue;
        exists = true;
        int rank = address_rank(entry, family);
        if (rank && (!best || rank > address_rank(best, family)))
            best = entry;
    }
    if (!best)
        return exists ? 0 : -1;
    socklen_t size = best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                           : sizeof(struct sockaddr_in6);
    return numeric_text(best->ifa_addr, size, numeric, len) == 0;
}

static bool listed_before(const struct ifaddrs *all, const struct ifaddrs *entry)
{
    while (all != entry && strcmp(all->ifa_name, entry->ifa_name) != 0)
        all = all->ifa_next;
    return all != entry;
}

/* "lo 127.0.0.1, eth0 10.1.2.3, ifb0 (no address)"; as many as there is room for. */
static void interfaces_list(const struct ifaddrs *all, char *text, size_t len)
{
    size_t used = 0;
    text[0] = 0;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        char numeric[TLY_NUMERIC_MAX], item[TLY_NUMERIC_MAX + 32];
        if (listed_before(all, entry))
            continue;
        bool has = interface_address(all, entry->ifa_name, AF_INET, numeric, sizeof numeric) == 1;
        int item_len = snprintf(item, sizeof item, "%s%s %s", used ? ", " : "", entry->ifa_name,
                                has ? numeric : "(no address)");
        if (used + (size_t)item_len + sizeof ", ..." > len) {
            strcpy(text + used, ", ...");
            return;
        }
        strcpy(text + used, item);
        used += (size_t)item_len;
    }
}

static tally_status interface_resolve(const tly_config *config, char *numeric, size_t len)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return tly_error(TALLY_ESYSTEM, "the network interfaces cannot be listed: %s", strerror(errno));

    char text[TLY_QUOTED_MAX], list[768], root[TLY_NUMERIC_MAX];
    tally_status status = TALLY_OK;
    int found = interface_address(all, config->interface, AF_INET, numeric, len);
    if (found != 1) {
        interfaces_list(all, list, sizeof list);
        status = tly_error(TALLY_ECONFIG, "DMLC_INTERFACE=%s %s; interfaces here: %s",
                           tly_setting_quote(config->interface, text),
                           found ? "does not exist" : "has no address", list);
    } else if (config->root_uri[0]) {
        status = tly_address_resolve(config->root_uri, "DMLC_PS_ROOT_URI", root, sizeof root);
        if (!status && strchr(root, ':'))
            interface_address(all, config->interface, AF_INET6, numeric, len);
    }
    freeifaddrs(all);
    return status;
}

/* Where packets to the scheduler would leave from, by the kernel's routes. */
static tally_status route_source(const tly_config *config, char *numeric, size_t len)
{
    char root[TLY_NUMERIC_MAX], port[8], text[TLY_QUOTED_MAX];
    tally_status status = tly_address_resolve(config->root_uri, "DMLC_PS_ROOT_URI", root, sizeof root);
    if (status)
        return status;
    struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM };
    struct addrinfo *peer;
    snprintf(port, sizeof port, "%d", config->root_port ? config->root_port : ROUTE_PORT);
    int code = getaddrinfo(root, port, &hints, &peer);
    if (code)
        return does_not_resolve("DMLC_PS_ROOT_URI", config->root_uri, code, errno);

    struct sockaddr_storage source;
    socklen_t source_len = sizeof source;
    int fd = socket(peer->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, peer->ai_addr, peer->ai_addrlen) != 0
        || getsockname(fd, (struct sockaddr *)&source, &source_len) != 0
        || numeric_text((struct sockaddr *)&source, source_len, numeric, len) != 0)
        status = tly_error(TALLY_ECONFIG,
                           "no route to DMLC_PS_ROOT_URI=%s (%s): %s; set DMLC_INTERFACE or DMLC_NODE_HOST",
                           tly_setting_quote(config->root_uri, text), root, strerror(errno));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(peer);
    return status;
}

tally_status tly_address_of_node(const tly_config *config, char *numeric, size_t len)
{
    char found[TLY_NUMERIC_MAX];
    tally_status status;
    if (config->node_host[0])
        status = tly_address_resolve(config->node_host, "DMLC_NODE_HOST", found, sizeof found);
    else if (config->interface[0])
        status = interface_resolve(config, found, sizeof found);
    else if (config->root_uri[0])
        status = route_source(config, found, sizeof found);
    else
        status = tly_error(TALLY_ECONFIG, "DMLC_PS_ROOT_URI is not set, so there is no route to take the "
                                          "address of; set it, DMLC_INTERFACE or DMLC_NODE_HOST");
    if (!status)
        snprintf(numeric, len, "%s", found);
    return status;
}
