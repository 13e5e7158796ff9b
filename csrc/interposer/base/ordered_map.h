/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An ordered map from addresses (or handles) to the structs that embed its nodes: a treap whose priorities are hashes
 * of the keys, so its shape depends on the keys alone. Not locked.
 */
#ifndef GPUSHARE_BASE_ORDERED_MAP_H
#define GPUSHARE_BASE_ORDERED_MAP_H

#include <stdint.h>

struct gs_node {
    uint64_t key;
    struct gs_node *left, *right;
};

struct gs_map {
    struct gs_node *root;
};

/* The key must not be in the map yet. */
void gs_map_insert(struct gs_map *map, struct gs_node *node);

/* Removes the node with this key from the map and returns it, or NULL. */
struct gs_node *gs_map_remove(struct gs_map *map, uint64_t key);

/* The node with the greatest key that is not above `key`, or NULL. */
struct gs_node *gs_map_floor(const struct gs_map *map, uint64_t key);

#endif
