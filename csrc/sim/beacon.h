/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of an interprocess event that processes share: how often it was recorded, and which record was reached. A
 * wait for a record ends when the process that made the record has ended.
 */
#ifndef SIM_BEACON_H
#define SIM_BEACON_H

#include <stdbool.h>
#include <stdint.h>

struct sim_beacon;

/*
 * Creates a new beacon, or opens the beacon behind a descriptor, of which it takes ownership. NULL if there is no
 * memory, or the descriptor is not of a beacon.
 */
struct sim_beacon *sim_beacon_new(void);
struct sim_beacon *sim_beacon_open(int fd);
void sim_beacon_retain(struct sim_beacon *beacon);
void sim_beacon_release(struct sim_beacon *beacon);
int sim_beacon_fd(const struct sim_beacon *beacon);

/* A record is submitted. Pass the returned number to `reach` once the record is executed. */
uint64_t sim_beacon_record(struct sim_beacon *beacon);
void sim_beacon_reach(struct sim_beacon *beacon, uint64_t number);

/* The last record by any process; 0: none. */
uint64_t sim_beacon_last(const struct sim_beacon *beacon);
bool sim_beacon_passed(const struct sim_beacon *beacon, uint64_t number);
void sim_beacon_wait(const struct sim_beacon *beacon, uint64_t number);

#endif
