/* mailbox.h - how other threads speak to the thread that owns a piece of state.
 *
 * Any thread posts; the owner waits for the descriptor to be readable and takes all letters at once,
 * in the order of posting. Letters are embedded in what they are about. The lock is a leaf: nothing
 * is called while it is held. */
#ifndef TLY_MAILBOX_H
#define TLY_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>

#include "common/status.h"

typedef struct tly_letter {
    struct tly_letter *next;
    int type; /* the owner's own enumeration */
} tly_letter;

typedef struct tly_mailbox {
    pthread_mutex_t lock; /* guards first, last, closed */
    tly_letter *first, **last;
    bool closed;
    int fd;               /* eventfd, close-on-exec: readable while letters wait */
    bool made;
} tly_mailbox;

/* Returns: TALLY_OK, TALLY_ESYSTEM */
tally_status tly_mailbox_init(tly_mailbox *box);
void tly_mailbox_fini(tly_mailbox *box); /* a zeroed one is fine */

/* Returns: false when the box is closed, and then the letter stays the caller's. */
bool tly_mailbox_post(tly_mailbox *box, tly_letter *letter);

/* All letters, linked by next, or NULL. */
tly_letter *tly_mailbox_take(tly_mailbox *box);

/* Refuse letters from now on. */
void tly_mailbox_close(tly_mailbox *box);

#endif
