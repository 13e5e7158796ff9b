/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/ordered_map.h"

#include <stddef.h>

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014): well mixed for keys that differ in few bits. */
static uint64_t priority(uint64_t key)
{
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}

/* Splits a tree into the keys below `key` and the keys above it. */
static void split(struct gs_node *tree, uint64_t key, struct gs_node **below, struct gs_node **above)
{
    while (tree != NULL) {
        if (tree->key < key) {
            *below = tree;
            below = &tree->right;
            tree = tree->right;
        } else {
            *above = tree;
            above = &tree->left;
            tree = tree->left;
        }
    }
    *below = NULL;
    *above = NULL;
}

static struct gs_node *merge(struct gs_node *below, struct gs_node *above)
{
    struct gs_node *root = NULL;
    struct gs_node **link = &root;
    while (below != NULL && above != NULL) {
        if (priority(below->key) > priority(above->key)) {
            *link = below;
            link = &below->right;
            below = below->right;
        } else {
            *link = above;
            link = &above->left;
            above = above->left;
        }
    }
    *link = below != NULL ? below : above;
    return root;
}

void gs_map_insert(struct gs_map *map, struct gs_node *node)
{
    uint64_t rank = priority(node->key);
    struct gs_node **link = &map->root;
    while (*link != NULL && priority((*link)->key) > rank)
        link = node->key < (*link)->key ? &(*link)->left : &(*link)->right;
    split(*link, node->key, &node->left, &node->right);
    *link = node;
}

struct gs_node *gs_map_remove(struct gs_map *map, uint64_t key)
{
    struct gs_node **link = &map->root;
    while (*link != NULL && (*link)->key != key)
        link = key < (*link)->key ? &(*link)->left : &(*link)->right;
    struct gs_node *found = *link;
    if (found != NULL)
        *link = merge(found->left, found->right);
    return found;
}

struct gs_node *gs_map_floor(const struct gs_map *map, uint64_t key)
{
    struct gs_node *best = NULL;
    for (struct gs_node *node = map->root; node != NULL;) {
        if (node->key <= key) {
            best = node;
            node = node->right;
        } else {
            node = node->left;
        }
    }
    return best;
}
