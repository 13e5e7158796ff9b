/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_HIBERNATOR_CONFINE_H
#define GPUSHARE_HIBERNATOR_CONFINE_H

#include <stdbool.h>

/*
 * From here on, this process and its children have no sockets but Unix sockets, execute no other program, and get no
 * further privileges. Must be called before the driver is loaded, and before there are other threads. On failure,
 * prints the reason and returns false.
 */
bool hib_confine(void);

#endif
