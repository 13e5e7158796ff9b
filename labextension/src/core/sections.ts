// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup } from './status';
import { isRunning, isWaiting } from './status';

export interface ISections {
  running: IGroup[];
  waiting: IGroup[];
  idle: IGroup[];
}

/** Sort the groups into sections. */
export function makeSections(groups: readonly IGroup[]): ISections {
  return {
    running: groups.filter(isRunning),
    waiting: groups
      .filter(isWaiting)
      // A waking group has no position, because it is already being served.
      .sort((a, b) => placeOf(a) - placeOf(b)),
    idle: groups
      .filter(group => !isWaiting(group) && !isRunning(group))
      .sort((a, b) => b.since - a.since)
  };
}

function placeOf({ state, position }: IGroup): number {
  return position ?? (state === 'waking' ? 0 : Infinity);
}

/** The rows of a collapsed section: the first ones, and that of the active notebook. */
export function firstRows(
  groups: IGroup[],
  limit: number,
  current: string | null
): IGroup[] {
  return groups.length <= limit + 1
    ? groups
    : groups.filter((group, index) => index < limit || group.id === current);
}
