/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "driver.h"

/* Finds a result by its name, with or without CUDA_ERROR_. False if there is none. */
bool sim_result_by_name(const char *name, CUresult *result);

#endif
