/* address.h - host names, interfaces, and the address that a node tells the others. */
#ifndef TLY_ADDRESS_H
#define TLY_ADDRESS_H

#include "common/config.h"

/* A numeric address with port fits: "tcp://[xxxx:...:xxxx%iface]:65535". */
#define TLY_ENDPOINT_MAX 128

/* A numeric address with scope fits: "fe80::1234:5678:9abc:def0%interface". */
#define TLY_NUMERIC_MAX 64

/* Resolve a host (name, IPv4, IPv6, IPv6 in brackets) to a numeric address without brackets; of a name
 * that has both, the IPv4 address. A link-local address keeps its scope ("fe80::1%eth0").
 *
 * setting: the name of the setting that holds host, for the sentence.
 * numeric: len is at least TLY_NUMERIC_MAX.
 * Blocks:  1.5 s at most (a name whose resolver does not answer); numeric addresses and "localhost",
 *          which is always 127.0.0.1, need no resolver. A resolver that is given up leaves a detached
 *          thread, with all signals blocked, which ends when the resolver does.
 * Returns: TALLY_OK
 *          TALLY_ECONFIG  the sentence names setting, value and the resolver's text
 *          TALLY_ENOMEM, TALLY_ESYSTEM (no thread) */
tally_status tly_address_resolve(const char *host, const char *setting, char *numeric, size_t len);

/* Write "tcp://ADDRESS:PORT", with brackets around an IPv6 address. */
void tly_address_endpoint(const char *numeric, int port, char *endpoint, size_t len);

/* The numeric address that this node advertises and binds: DMLC_NODE_HOST if set, else the address
 * of DMLC_INTERFACE (of the family of the scheduler's address when it has both), else the source
 * address of the route to the scheduler.
 * Returns: TALLY_OK
 *          TALLY_ECONFIG  unknown interface (the known ones are listed), interface without address,
 *                         name that does not resolve, no route
 *          TALLY_ENOMEM, TALLY_ESYSTEM
 * numeric and blocking as in tly_address_resolve. */
tally_status tly_address_of_node(const tly_config *config, char *numeric, size_t len);

#endif
