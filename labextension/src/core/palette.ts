// SPDX-License-Identifier: BSD-3-Clause
import type { IStatus } from './status';

/** Number of colours in the style sheet. */
export const COLOURS = 8;

/**
 * Chooses the colours of notebooks. All views share one palette, so a notebook looks the same
 * in each of them.
 */
export class Palette {
  /**
   * Return a colour for each notebook of a status and its timeline, by the group's id.
   *
   * A notebook keeps its colour as long as it is in the status or the timeline. The map is
   * the same object until a notebook comes or goes.
   */
  coloursOf({
    groups,
    timeline
  }: Pick<IStatus, 'groups' | 'timeline'>): ReadonlyMap<string, number> {
    const ids = new Set(groups.map(({ id }) => id));
    const gone = new Set(
      timeline?.spans.map(({ group }) => group).filter(id => !ids.has(id))
    );
    if (
      ids.size + gone.size !== this._colours.size ||
      [...ids, ...gone].some(id => !this._colours.has(id))
    ) {
      this._colours = assignColours(this._colours, [...ids], [...gone]);
    }
    return this._colours;
  }

  private _colours: ReadonlyMap<string, number> = new Map();
}

/**
 * Assign a colour to each id, and keep the colours that were assigned before.
 *
 * A new id gets the first unused colour, so that a few notebooks always look different. If
 * all colours are in use, it gets the least used one, preferably that of a notebook that is gone.
 *
 * @param gone - Notebooks that are only in the timeline.
 */
export function assignColours(
  before: ReadonlyMap<string, number>,
  ids: readonly string[],
  gone: readonly string[] = []
): Map<string, number> {
  const after = new Map<string, number>();
  const uses = new Array<number>(COLOURS).fill(0);
  // One present notebook counts more than all that are gone.
  const groups = [
    { members: ids, weight: gone.length + 1 },
    { members: gone, weight: 1 }
  ];
  const assign = (id: string, colour: number, weight: number): void => {
    after.set(id, colour);
    uses[colour] = (uses[colour] ?? 0) + weight;
  };
  for (const { members, weight } of groups) {
    for (const id of members) {
      const colour = before.get(id);
      if (colour !== undefined) {
        assign(id, colour, weight);
      }
    }
  }
  for (const { members, weight } of groups) {
    for (const id of members) {
      if (!after.has(id)) {
        assign(id, uses.indexOf(Math.min(...uses)), weight);
      }
    }
  }
  return after;
}
