/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver.h"

enum sim_state sim_state;
struct sim_config sim_config;
