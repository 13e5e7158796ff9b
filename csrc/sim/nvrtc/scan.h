/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scans a source. Handles comments, strings, preprocessor lines, namespaces and templates, but not conditional
 * compilation.
 */
#ifndef SIM_NVRTC_SCAN_H
#define SIM_NVRTC_SCAN_H

#include "nvrtc/text.h"

struct sim_names {
    char **items;
    size_t count;
};

void sim_names_free(struct sim_names *names);

/* Finds the names of kernels that are not templates. */
void sim_find_kernels(const char *source, struct sim_names *names);

/* Appends the source in the form that the host's compiler can use. */
void sim_add_source(struct sim_text *out, const char *source);

#endif
