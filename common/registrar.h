/* registrar.h - a node's connection to the scheduler: the membership (the pure core) with its socket.
 * The thin shell that worker and server have in common. One owner thread. */
#ifndef TLY_REGISTRAR_H
#define TLY_REGISTRAR_H

#include "common/connection.h"
#include "common/membership.h"

/* Receives what the membership passes on; valid during the call. */
typedef void (*tly_control_fn)(void *arg, const tly_ctl *message, tly_time now);

typedef struct tly_registrar {
    tly_membership membership;
    tly_connection connection;
    const tly_log *log;
    char scheduler[TLY_ENDPOINT_MAX];
    tly_control_fn on_control;
    void *arg;
} tly_registrar;

/* Connect and register. address: this node's own, for the name by which others know it.
 * Returns: TALLY_OK, TALLY_ECONFIG (the scheduler's host name), TALLY_ENOMEM, TALLY_ESYSTEM; then there is
 *          nothing to fini */
tally_status tly_registrar_init(tly_registrar *r, tly_net *net, const tly_config *config, const tly_log *log,
                                tly_role role, const char *address, uint32_t endpoint_count,
                                const char *const *endpoints, tly_control_fn on_control, void *arg);
void tly_registrar_fini(tly_registrar *r);

/* Do what is due and send what is queued.
 * *renewed: the connection was made anew, so what the owner said before may be lost.
 * Returns: when to call again. */
tly_time tly_registrar_run(tly_registrar *r, tly_time now, bool *renewed);

/* Send what is queued now. */
void tly_registrar_flush(tly_registrar *r);

/* Handle what a poll of r->connection.sock has found. */
void tly_registrar_handle(tly_registrar *r, const tly_poll_item *item, tly_time now);

/* Close the connection; what was said last is given linger_ms to leave. */
void tly_registrar_close(tly_registrar *r, int linger_ms);

#endif
