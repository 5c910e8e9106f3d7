#include "common/mailbox.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

tally_status tly_mailbox_init(tly_mailbox *box)
{
    memset(box, 0, sizeof *box);
    box->last = &box->first;
    box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (box->fd < 0)
        return tly_error(TALLY_ESYSTEM, "cannot create an event descriptor: %s", strerror(errno));
    pthread_mutex_init(&box->lock, NULL);
    box->made = true;
    return TALLY_OK;
}

void tly_mailbox_fini(tly_mailbox *box)
{
    if (!box->made)
        return;
    close(box->fd);
    pthread_mutex_destroy(&box->lock);
    memset(box, 0, sizeof *box);
}

bool tly_mailbox_post(tly_mailbox *box, tly_letter *letter)
{
    pthread_mutex_lock(&box->lock);
    bool open = !box->closed, first = !box->first;
    if (open) {
        letter->next = NULL;
        *box->last = letter;
        box->last = &letter->next;
        /* Under the lock, so that the owner cannot free the box between the two. */
        if (first) {
            ssize_t n = write(box->fd, &(uint64_t){ 1 }, sizeof(uint64_t));
            (void)n; /* an eventfd refuses only when it is readable anyway */
        }
    }
    pthread_mutex_unlock(&box->lock);
    return open;
}

tly_letter *tly_mailbox_take(tly_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    tly_letter *letters = box->first;
    if (letters) {
        uint64_t count;
        ssize_t n = read(box->fd, &count, sizeof count);
        (void)n;
        box->first = NULL;
        box->last = &box->first;
    }
    pthread_mutex_unlock(&box->lock);
    return letters;
}

void tly_mailbox_close(tly_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->closed = true;
    pthread_mutex_unlock(&box->lock);
}
