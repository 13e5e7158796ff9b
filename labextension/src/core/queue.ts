// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup, ISettings, IStatus } from './status';

/** The part of its time slice that a group has used, in percent; null while no other group is waiting for it. */
export function turnPercent(
  group: IGroup,
  settings: ISettings | null,
  now: number
): number | null {
  if (group.yields_in === null || group.state !== 'running') {
    return null;
  }
  const left = Math.max(0, group.yields_in - Math.max(0, now - group.at));
  const quantum = settings?.quantum;
  // The scheduler does not report the length that it chose, so add up the used and the remaining time.
  const whole =
    typeof quantum === 'number' && quantum > 0
      ? quantum
      : Math.max(0, now - group.since) + left;
  return whole > 0
    ? Math.round(100 * Math.min(1, Math.max(0, 1 - left / whole)))
    : 100;
}

/** The group that has the GPU that another group is waiting for, as opposed to groups that are ahead in the queue. */
export function holderOf(group: IGroup, status: IStatus): IGroup | null {
  const named = ({ reason }: IGroup, key: string): IGroup | null =>
    status.groups.find(({ id }) => id === reason?.params[key]) ?? null;
  const seen = new Set<IGroup>();
  let waiting: IGroup | null = group;
  while (waiting?.reason?.code === 'behind' && !seen.has(waiting)) {
    seen.add(waiting);
    waiting = named(waiting, 'ahead');
  }
  return waiting && named(waiting, 'holder');
}
