/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What several processes share of an interprocess event: how often it was recorded, and which record was reached. Who
 * waits for a record of a process that has ended does not wait any longer.
 */
#ifndef SIM_BEACON_H
#define SIM_BEACON_H

#include <stdbool.h>
#include <stdint.h>

struct sim_beacon;

/* One of its own, or the one behind a descriptor, which is taken over. NULL if there is no memory or it is none. */
struct sim_beacon *sim_beacon_new(void);
struct sim_beacon *sim_beacon_open(int fd);
void sim_beacon_retain(struct sim_beacon *beacon);
void sim_beacon_release(struct sim_beacon *beacon);
int sim_beacon_fd(const struct sim_beacon *beacon);

/* A record is submitted; the number is what `reach` is told once it is executed. */
uint64_t sim_beacon_record(struct sim_beacon *beacon);
void sim_beacon_reach(struct sim_beacon *beacon, uint64_t number);

/* The last record of any process; 0: none. */
uint64_t sim_beacon_last(const struct sim_beacon *beacon);
bool sim_beacon_passed(const struct sim_beacon *beacon, uint64_t number);
void sim_beacon_wait(const struct sim_beacon *beacon, uint64_t number);

#endif
