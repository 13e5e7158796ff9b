// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup } from './status';
import { isRunning, isWaiting } from './status';

export interface ISections {
  running: IGroup[];
  waiting: IGroup[];
  idle: IGroup[];
}

/** Each group in the section that people expect, in the order in which they look for it. */
export function makeSections(groups: readonly IGroup[]): ISections {
  return {
    running: groups.filter(isRunning),
    waiting: groups
      .filter(isWaiting)
      // One that wakes has no place: it is served already.
      .sort((a, b) => placeOf(a) - placeOf(b)),
    idle: groups
      .filter(group => !isWaiting(group) && !isRunning(group))
      .sort((a, b) => b.since - a.since)
  };
}

function placeOf({ state, position }: IGroup): number {
  return position ?? (state === 'waking' ? 0 : Infinity);
}

/** The rows of a section that is not shown whole: the first, and the one of the notebook in front. */
export function firstRows(
  groups: IGroup[],
  limit: number,
  current: string | null
): IGroup[] {
  return groups.length <= limit + 1
    ? groups
    : groups.filter((group, index) => index < limit || group.id === current);
}
