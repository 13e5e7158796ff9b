/* SPDX-License-Identifier: BSD-3-Clause */
/* A growing text. */
#ifndef SIM_NVRTC_TEXT_H
#define SIM_NVRTC_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct sim_text {
    char *data;
    size_t length, size;
    bool failed; /* part of it is missing because there was no memory */
};

void sim_text_append(struct sim_text *text, const char *data, size_t length);
void sim_text_add(struct sim_text *text, const char *string);
void sim_text_clear(struct sim_text *text);

#endif
