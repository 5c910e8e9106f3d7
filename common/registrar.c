#include "common/registrar.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Messages taken before others get their turn. */
#define RECEIVE_BATCH 64

tally_status tly_registrar_init(tly_registrar *r, tly_net *net, const tly_config *config, const tly_log *log,
                                tly_role role, const char *address, uint32_t endpoint_count,
                                const char *const *endpoints, tly_control_fn on_control, void *arg)
{
    char numeric[TLY_ENDPOINT_MAX], name[128] = "?", host[256];
    uint64_t nonce;
    memset(r, 0, sizeof *r);
    r->log = log;
    r->on_control = on_control;
    r->arg = arg;
    tally_status status = tly_address_resolve(config->root_uri, "DMLC_PS_ROOT_URI", numeric, sizeof numeric);
    if (status != TALLY_OK)
        return status;
    tly_address_endpoint(numeric, config->root_port, r->scheduler, sizeof r->scheduler);
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return tly_error(TALLY_ESYSTEM, "the system gives no random numbers");
    gethostname(name, sizeof name - 1);
    snprintf(host, sizeof host, "%s/%s pid %d", name, address, (int)getpid());
    status = tly_membership_init(&r->membership, config, log, role, nonce, r->scheduler, host, endpoint_count,
                                 endpoints, tly_clock_now());
    if (status != TALLY_OK)
        return status;
    status = tly_connection_open(&r->connection, net, r->scheduler);
    if (status != TALLY_OK)
        tly_membership_fini(&r->membership);
    return status;
}

void tly_registrar_fini(tly_registrar *r)
{
    tly_registrar_close(r, 0);
    tly_membership_fini(&r->membership);
}

void tly_registrar_close(tly_registrar *r, int linger_ms)
{
    tly_connection_close(&r->connection, linger_ms);
}

void tly_registrar_flush(tly_registrar *r)
{
    for (tly_out *out; (out = tly_out_pop(&r->membership.out));) {
        if (r->connection.sock)
            tly_sock_send(r->connection.sock, NULL, out->head, out->head_len_bytes, NULL);
        tly_out_free(out);
    }
}

tly_time tly_registrar_run(tly_registrar *r, tly_time now, bool *renewed)
{
    *renewed = tly_connection_renew(&r->connection, now);
    if (*renewed)
        tly_membership_reconnected(&r->membership, now);
    tly_time due = tly_membership_tick(&r->membership, now);
    tly_registrar_flush(r);
    return tly_connection_due(&r->connection) < due ? tly_connection_due(&r->connection) : due;
}

static void handle_message(tly_registrar *r, const tly_buf *head, tly_time now)
{
    tly_ctl message;
    tally_status status = tly_ctl_decode(head->data, head->len_bytes, &message);
    if (status == TALLY_OK) {
        if (tly_membership_message(&r->membership, &message, now))
            r->on_control(r->arg, &message, now);
        tly_ctl_fini(&message);
    } else if (status == TALLY_EVERSION) {
        char text[TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "the scheduler at %s: %s", r->scheduler, tly_error_text());
        tly_membership_fail_here(&r->membership, TALLY_EVERSION, text);
    } else {
        tly_log_warn(r->log, "a message of the scheduler's was dropped: %s", tly_error_text());
    }
}

void tly_registrar_handle(tly_registrar *r, const tly_poll_item *item, tly_time now)
{
    tly_net_event event;
    /* Messages first: what the scheduler said last may be why the connection broke. */
    for (int i = 0; item->readable && i < RECEIVE_BATCH && r->connection.sock; i++) {
        tly_buf *head, *body;
        tally_status status = tly_sock_recv(r->connection.sock, NULL, &head, &body);
        if (status == TALLY_EAGAIN)
            break;
        if (status != TALLY_OK) {
            tly_log_warn(r->log, "a message of the scheduler's: %s", tly_error_text());
            continue;
        }
        handle_message(r, head, now);
        tly_buf_put(head);
        tly_buf_put(body);
    }
    while (item->event && (event = tly_connection_event(&r->connection, now)) != TLY_NET_NONE) {
        if (event == TLY_NET_UP)
            r->membership.trouble[0] = 0;
        else if (event == TLY_NET_RETRY)
            snprintf(r->membership.trouble, sizeof r->membership.trouble, "%s",
                     tly_sock_trouble(r->connection.sock));
    }
}
