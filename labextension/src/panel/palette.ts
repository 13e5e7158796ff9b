// SPDX-License-Identifier: BSD-3-Clause

/** How many colours the style sheet has. */
export const COLOURS = 8;

/**
 * Give each id a colour, and let it keep the one that it has.
 *
 * A new id gets the lowest colour that nobody has, so that a few notebooks always
 * look different; with more ids than colours the least used ones are shared.
 */
export function assignColours(
  before: ReadonlyMap<string, number>,
  ids: readonly string[]
): Map<string, number> {
  const after = new Map<string, number>();
  const uses = new Array<number>(COLOURS).fill(0);
  for (const id of ids) {
    const colour = before.get(id);
    if (colour !== undefined) {
      after.set(id, colour);
      uses[colour] = (uses[colour] ?? 0) + 1;
    }
  }
  for (const id of ids) {
    if (!after.has(id)) {
      const colour = uses.indexOf(Math.min(...uses));
      after.set(id, colour);
      uses[colour] = (uses[colour] ?? 0) + 1;
    }
  }
  return after;
}
