#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/address.h"
#include "common/clock.h"

/* A resolver of our own takes the place of the system's for names in ".test". */
static sem_t blocked_may_go, blocked_went;
static sigset_t resolver_mask;

int getaddrinfo(const char *restrict host, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict list)
{
    /* not a cast: ISO C has none from an object's to a function's pointer */
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof real);
    if (hints->ai_flags & AI_NUMERICHOST)
        return real(host, service, hints, list);
    pthread_sigmask(SIG_BLOCK, NULL, &resolver_mask);
    if (strcmp(host, "blocked.test") == 0) {
        while (sem_wait(&blocked_may_go) != 0)
            ;
        sem_post(&blocked_went);
        return EAI_AGAIN;
    }
    if (strcmp(host, "six.test") == 0)
        return real("fd00::6", service, hints, list);
    if (strcmp(host, "both.test") == 0) {
        struct addrinfo *second;
        int code = real("fd00::46", service, hints, list);
        if (!code)
            code = real("10.0.4.6", service, hints, &second);
        if (!code)
            (*list)->ai_next = second;
        return code;
    }
    if (strcmp(host, "again.test") == 0)
        return EAI_AGAIN;
    if (strcmp(host, "none.test") == 0)
        return EAI_NONAME;
    return EAI_FAIL; /* nothing else should ask a resolver */
}

static void resolves_to(const char *host, const char *expected)
{
    char numeric[TLY_NUMERIC_MAX] = "";
    assert_int_equal(tly_address_resolve(host, "DMLC_PS_ROOT_URI", numeric, sizeof numeric), TALLY_OK);
    assert_string_equal(numeric, expected);
}

static void loopback_and_numbers_need_no_resolver(void **state)
{
    (void)state;
    resolves_to("localhost", "127.0.0.1");
    resolves_to("LocalHost", "127.0.0.1");
    resolves_to("127.0.0.1", "127.0.0.1");
    resolves_to("::1", "::1");
    resolves_to("[::1]", "::1");
    resolves_to("192.0.2.77", "192.0.2.77");
    resolves_to("[2001:DB8:0::7]", "2001:db8::7");
    resolves_to("fe80::1%lo", "fe80::1%lo");
}

static void a_name_with_both_families_gives_ipv4(void **state)
{
    (void)state;
    resolves_to("both.test", "10.0.4.6");
    resolves_to("six.test", "fd00::6");
    assert_true(sigismember(&resolver_mask, SIGTERM));
    assert_true(sigismember(&resolver_mask, SIGINT));
}

static void refused(const char *host, const char *sentence)
{
    char numeric[TLY_NUMERIC_MAX] = "untouched";
    assert_int_equal(tly_address_resolve(host, "DMLC_NODE_HOST", numeric, sizeof numeric), TALLY_ECONFIG);
    assert_string_equal(tly_error_text(), sentence);
    assert_string_equal(numeric, "untouched");
}

static void a_name_that_does_not_resolve_is_named(void **state)
{
    (void)state;
    refused("none.test", "DMLC_NODE_HOST=\"none.test\" does not resolve: Name or service not known");
    refused("again.test",
            "DMLC_NODE_HOST=\"again.test\" does not resolve: Temporary failure in name resolution");
    refused("fe80::1%no-such-if",
            "DMLC_NODE_HOST=\"fe80::1%no-such-if\" does not resolve: Name or service not known");
}

static void a_silent_resolver_is_given_up_in_time(void **state)
{
    (void)state;
    tly_time begin = tly_clock_now();
    refused("blocked.test",
            "DMLC_NODE_HOST=\"blocked.test\" does not resolve: no name server answered within 1500 ms");
    assert_in_range(tly_clock_now() - begin, 1490, 1990);
    /* what was left behind ends in its own time */
    sem_post(&blocked_may_go);
    while (sem_wait(&blocked_went) != 0)
        ;
}

static void an_endpoint_has_brackets_around_ipv6(void **state)
{
    (void)state;
    char endpoint[TLY_ENDPOINT_MAX];
    tly_address_endpoint("127.0.0.1", 9000, endpoint, sizeof endpoint);
    assert_string_equal(endpoint, "tcp://127.0.0.1:9000");
    tly_address_endpoint("::1", 1, endpoint, sizeof endpoint);
    assert_string_equal(endpoint, "tcp://[::1]:1");
    tly_address_endpoint("fe80::1%eth0", 65535, endpoint, sizeof endpoint);
    assert_string_equal(endpoint, "tcp://[fe80::1%eth0]:65535");
}

static void node_is(const tly_config *config, const char *expected)
{
    char numeric[TLY_NUMERIC_MAX] = "";
    if (tly_address_of_node(config, numeric, sizeof numeric) != TALLY_OK)
        fail_msg("%s", tly_error_text());
    assert_string_equal(numeric, expected);
}

static void the_route_to_loopback_has_a_loopback_source(void **state)
{
    (void)state;
    node_is(&(tly_config){ .root_uri = "127.0.0.1", .root_port = 9000 }, "127.0.0.1");
    node_is(&(tly_config){ .root_uri = "localhost", .root_port = 0 }, "127.0.0.1");
}

/* Whether this machine's loopback has ::1. */
static bool has_ipv6(void)
{
    struct ifaddrs *all, *entry;
    bool found = false;
    assert_int_equal(getifaddrs(&all), 0);
    for (entry = all; entry; entry = entry->ifa_next)
        found = found || (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET6
                          && strcmp(entry->ifa_name, "lo") == 0);
    freeifaddrs(all);
    return found;
}

static void an_ipv6_scheduler_makes_an_ipv6_node(void **state)
{
    (void)state;
    if (!has_ipv6())
        skip();
    node_is(&(tly_config){ .root_uri = "::1", .root_port = 9000 }, "::1");
    node_is(&(tly_config){ .root_uri = "::1", .root_port = 9000, .interface = "lo" }, "::1");
}

static void the_interface_gives_the_address(void **state)
{
    (void)state;
    node_is(&(tly_config){ .root_uri = "127.0.0.1", .root_port = 9000, .interface = "lo" }, "127.0.0.1");
    node_is(&(tly_config){ .interface = "lo" }, "127.0.0.1");
}

static void the_node_host_wins_over_the_interface(void **state)
{
    (void)state;
    node_is(&(tly_config){ .root_uri = "127.0.0.1", .interface = "no-such-if", .node_host = "both.test" },
            "10.0.4.6");
}

static void not_a_node(const tly_config *config, const char *begin, const char *part)
{
    char numeric[TLY_NUMERIC_MAX] = "untouched";
    assert_int_equal(tly_address_of_node(config, numeric, sizeof numeric), TALLY_ECONFIG);
    assert_memory_equal(tly_error_text(), begin, strlen(begin));
    if (!strstr(tly_error_text(), part))
        fail_msg("no \"%s\" in \"%s\"", part, tly_error_text());
    assert_string_equal(numeric, "untouched");
}

static void an_unknown_interface_is_refused_with_those_that_exist(void **state)
{
    (void)state;
    not_a_node(&(tly_config){ .root_uri = "127.0.0.1", .interface = "eth999" },
               "DMLC_INTERFACE=\"eth999\" does not exist; interfaces here: ", "lo 127.0.0.1");
    /* each once */
    const char *first = strstr(tly_error_text(), "lo 127.0.0.1");
    assert_null(strstr(first + 1, "lo 127.0.0.1"));
}

static void an_interface_without_address_says_so(void **state)
{
    (void)state;
    struct ifaddrs *all, *entry, *other;
    char name[IF_NAMESIZE] = "";
    assert_int_equal(getifaddrs(&all), 0);
    for (entry = all; entry && !name[0]; entry = entry->ifa_next) {
        bool has = false;
        for (other = all; other; other = other->ifa_next)
            has = has
                  || (strcmp(other->ifa_name, entry->ifa_name) == 0 && other->ifa_addr
                      && (other->ifa_addr->sa_family == AF_INET || other->ifa_addr->sa_family == AF_INET6));
        if (!has)
            snprintf(name, sizeof name, "%s", entry->ifa_name);
    }
    freeifaddrs(all);
    if (!name[0])
        skip(); /* every interface of this machine has an address */
    char begin[128], part[64];
    tly_config config = { .root_uri = "127.0.0.1" };
    snprintf(config.interface, sizeof config.interface, "%s", name);
    snprintf(begin, sizeof begin, "DMLC_INTERFACE=\"%s\" has no address; interfaces here: ", name);
    snprintf(part, sizeof part, "%s (no address)", name);
    not_a_node(&config, begin, part);
}

static void a_scheduler_that_does_not_resolve_leaves_no_address(void **state)
{
    (void)state;
    not_a_node(&(tly_config){ .root_uri = "none.test" },
               "DMLC_PS_ROOT_URI=\"none.test\" does not resolve: ", "not known");
    not_a_node(&(tly_config){ .root_uri = "none.test", .interface = "lo" },
               "DMLC_PS_ROOT_URI=\"none.test\" does not resolve: ", "not known");
    not_a_node(&(tly_config){ .root_uri = "127.0.0.1", .node_host = "none.test" },
               "DMLC_NODE_HOST=\"none.test\" does not resolve: ", "not known");
    not_a_node(&(tly_config){ .root_port = 1 }, "DMLC_PS_ROOT_URI is not set", "DMLC_INTERFACE");
}

static void a_scheduler_without_route_is_named(void **state)
{
    (void)state;
    /* the broadcast address needs SO_BROADCAST, everywhere */
    not_a_node(&(tly_config){ .root_uri = "255.255.255.255", .root_port = 9000 },
               "no route to DMLC_PS_ROOT_URI=\"255.255.255.255\" (255.255.255.255): ",
               "; set DMLC_INTERFACE or DMLC_NODE_HOST");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_and_numbers_need_no_resolver),
        cmocka_unit_test(a_name_with_both_families_gives_ipv4),
        cmocka_unit_test(a_name_that_does_not_resolve_is_named),
        cmocka_unit_test(a_silent_resolver_is_given_up_in_time),
        cmocka_unit_test(an_endpoint_has_brackets_around_ipv6),
        cmocka_unit_test(the_route_to_loopback_has_a_loopback_source),
        cmocka_unit_test(an_ipv6_scheduler_makes_an_ipv6_node),
        cmocka_unit_test(the_interface_gives_the_address),
        cmocka_unit_test(the_node_host_wins_over_the_interface),
        cmocka_unit_test(an_unknown_interface_is_refused_with_those_that_exist),
        cmocka_unit_test(an_interface_without_address_says_so),
        cmocka_unit_test(a_scheduler_that_does_not_resolve_leaves_no_address),
        cmocka_unit_test(a_scheduler_without_route_is_named),
    };
    sem_init(&blocked_may_go, 0, 0);
    sem_init(&blocked_went, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
