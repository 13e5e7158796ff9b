/* SPDX-License-Identifier: BSD-3-Clause */
#include "nvrtc/scan.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_name(struct sim_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return;
    char **items = realloc(names->items, (names->count + 1) * sizeof *items);
    if (items == NULL)
        return;
    names->items = items;
    items[names->count] = strdup(name);
    names->count += items[names->count] != NULL;
}

void sim_names_free(struct sim_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
}

static bool is_identifier(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Skips white space, comments, strings and preprocessor lines. */
static const char *skip(const char *at, const char *begin)
{
    for (;;) {
        if (isspace((unsigned char)*at)) {
            at++;
        } else if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end == NULL ? at + strlen(at) : end + 2;
        } else if (*at == '"' || *at == '\'') {
            char quote = *at++;
            while (*at != '\0' && *at != quote)
                at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
            at += *at != '\0';
        } else if (*at == '#') {
            const char *line = at;
            while (line > begin && line[-1] != '\n' && isspace((unsigned char)line[-1]))
                line--;
            if (line > begin && line[-1] != '\n')
                return at;
            while (*at != '\0' && *at != '\n')
                at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
        } else {
            return at;
        }
    }
}

static const char *skip_parentheses(const char *at, const char *begin)
{
    unsigned depth = 0;
    while (*(at = skip(at, begin)) != '\0') {
        depth += *at == '(';
        if (*at++ == ')' && --depth == 0)
            break;
    }
    return at;
}

static bool is_word(const char *at, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(at, word, length) == 0;
}

static bool has_parameters(const char *word, size_t length)
{
    return is_word(word, length, "__launch_bounds__") || is_word(word, length, "__cluster_dims__") ||
           is_word(word, length, "__attribute__") || is_word(word, length, "__align__") ||
           is_word(word, length, "alignas");
}

/* The name of the function whose declaration continues at `at`; NULL if there is none. */
static const char *function_name(const char *at, const char *begin, size_t *length)
{
    const char *word = NULL;
    while (*(at = skip(at, begin)) != '\0' && *at != ';' && *at != '{') {
        if (is_identifier(*at)) {
            word = at;
            while (is_identifier(*at))
                at++;
            *length = (size_t)(at - word);
        } else if (*at == '(') {
            if (word == NULL || !has_parameters(word, *length))
                return word;
            at = skip_parentheses(at, begin);
        } else {
            at++;
        }
    }
    return NULL;
}

#define MAX_DEPTH 64

void sim_find_kernels(const char *source, struct sim_names *names)
{
    char scope[MAX_DEPTH][256]; /* the qualification inside each brace */
    unsigned depth = 0;
    char pending[256] = "";
    bool in_template = false;
    scope[0][0] = '\0';
    for (const char *at = source; *(at = skip(at, source)) != '\0';) {
        if (!is_identifier(*at)) {
            if (*at == '{' && depth + 1 < MAX_DEPTH) {
                char inner[sizeof scope[0]];
                snprintf(inner, sizeof inner, "%.120s%.120s", scope[depth], pending);
                strcpy(scope[++depth], inner);
            } else if (*at == '}' && depth > 0) {
                depth--;
            }
            if (*at == '{' || *at == '}' || *at == ';') {
                pending[0] = '\0';
                in_template = false;
            }
            at++;
            continue;
        }
        const char *word = at;
        while (is_identifier(*at))
            at++;
        size_t length = (size_t)(at - word);
        if (is_word(word, length, "template")) {
            in_template = true;
        } else if (is_word(word, length, "namespace")) {
            at = skip(at, source);
            size_t used = 0;
            while ((is_identifier(*at) || *at == ':') && used + 3 < sizeof pending)
                pending[used++] = *at++;
            strcpy(pending + used, used > 0 ? "::" : "");
        } else if (is_word(word, length, "__global__") && !in_template) {
            size_t name_length = 0;
            const char *name = function_name(at, source, &name_length);
            if (name != NULL && name_length < 256) {
                char full[512];
                snprintf(full, sizeof full, "%s%.*s", scope[depth], (int)name_length, name);
                add_name(names, full);
            }
        }
    }
}

/* `extern __shared__ T name[];` has no meaning on the host. A pointer to the block's dynamic memory replaces it. */
void sim_add_source(struct sim_text *out, const char *source)
{
    const char *done = source;
    for (const char *at = source; *(at = skip(at, source)) != '\0';) {
        if (!is_identifier(*at)) {
            at++;
            continue;
        }
        const char *word = at;
        while (is_identifier(*at))
            at++;
        if (!is_word(word, (size_t)(at - word), "extern"))
            continue;
        const char *next = skip(at, source);
        if (strncmp(next, "__shared__", 10) != 0 || is_identifier(next[10]))
            continue;
        const char *type = next + 10;
        const char *end = type + strcspn(type, ";");
        const char *bracket = memchr(type, '[', (size_t)(end - type));
        if (*end == '\0' || bracket == NULL)
            continue;
        const char *name_end = bracket;
        while (name_end > type && isspace((unsigned char)name_end[-1]))
            name_end--;
        const char *name = name_end;
        while (name > type && is_identifier(name[-1]))
            name--;
        sim_text_append(out, done, (size_t)(word - done));
        struct sim_text plain = {NULL, 0, 0, false}; /* the type without __align__(n) */
        for (const char *t = type; t < name;) {
            if (strncmp(t, "__align__", 9) == 0)
                t = skip_parentheses(t + 9, source);
            else
                sim_text_append(&plain, t++, 1);
        }
        sim_text_append(&plain, "", 0);
        sim_text_add(out, plain.data);
        sim_text_add(out, "*");
        sim_text_append(out, name, (size_t)(name_end - name));
        sim_text_add(out, " = (");
        sim_text_add(out, plain.data);
        sim_text_add(out, "*)gpushare_sim::dynamic_shared()");
        sim_text_clear(&plain);
        done = at = end;
    }
    sim_text_add(out, done);
}
