// SPDX-License-Identifier: BSD-3-Clause

/** How many colours the style sheet has. */
export const COLOURS = 8;

/**
 * Give each id a colour, and let it keep the one that it has.
 *
 * A new id gets the lowest colour that nobody has, so that a few notebooks always
 * look different; with more ids than colours the least used ones are shared, those of
 * who is gone first.
 *
 * @param gone - Those of whom only the timeline still tells.
 */
export function assignColours(
  before: ReadonlyMap<string, number>,
  ids: readonly string[],
  gone: readonly string[] = []
): Map<string, number> {
  const after = new Map<string, number>();
  const uses = new Array<number>(COLOURS).fill(0);
  // One who is here counts for more than all who are gone.
  const groups = [
    { members: ids, weight: gone.length + 1 },
    { members: gone, weight: 1 }
  ];
  const give = (id: string, colour: number, weight: number): void => {
    after.set(id, colour);
    uses[colour] = (uses[colour] ?? 0) + weight;
  };
  for (const { members, weight } of groups) {
    for (const id of members) {
      const colour = before.get(id);
      if (colour !== undefined) {
        give(id, colour, weight);
      }
    }
  }
  for (const { members, weight } of groups) {
    for (const id of members) {
      if (!after.has(id)) {
        give(id, uses.indexOf(Math.min(...uses)), weight);
      }
    }
  }
  return after;
}
