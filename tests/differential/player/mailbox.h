/* SPDX-License-Identifier: BSD-3-Clause */
/* Page-locked host memory in which a kernel that runs already is told what to write. */
#ifndef GPUSHARE_DIFFERENTIAL_MAILBOX_H
#define GPUSHARE_DIFFERENTIAL_MAILBOX_H

struct mailbox {
    unsigned long ready;
    unsigned char *at;
    unsigned long count, key;
};

#endif
