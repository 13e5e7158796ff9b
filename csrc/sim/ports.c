/* SPDX-License-Identifier: BSD-3-Clause */
#include "ports.h"

struct sim_ports sim_ports;
