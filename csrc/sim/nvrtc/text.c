/* SPDX-License-Identifier: BSD-3-Clause */
#include "nvrtc/text.h"

#include <stdlib.h>
#include <string.h>

void sim_text_append(struct sim_text *text, const char *data, size_t length)
{
    if (text->length + length + 1 > text->size) {
        size_t size = (text->length + length + 1) * 2;
        char *moved = realloc(text->data, size);
        if (moved == NULL) {
            text->failed = true;
            return;
        }
        text->data = moved;
        text->size = size;
    }
    memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void sim_text_add(struct sim_text *text, const char *string)
{
    sim_text_append(text, string, strlen(string));
}

void sim_text_clear(struct sim_text *text)
{
    free(text->data);
    *text = (struct sim_text){NULL, 0, 0, false};
}
