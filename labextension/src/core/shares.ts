// SPDX-License-Identifier: BSD-3-Clause
import type { IGpu, IGroup, IShare } from './status';
import { isRunning, isWaiting } from './status';

/** Seconds of rest after which a GPU is shown as one line. */
export const REST = 60;

/** Since when no notebook uses a GPU or waits for it; Infinity while one does, or while it is not at rest otherwise. */
export function restsSince(
  { uuid, utilization, draining }: IGpu,
  groups: readonly IGroup[]
): number {
  return draining || utilization
    ? Infinity
    : groups
        .filter(group => group.gpus.some(share => share.uuid === uuid))
        .reduce(
          (since, group) =>
            isRunning(group) || isWaiting(group)
              ? Infinity
              : Math.max(since, group.since),
          -Infinity
        );
}

/** What a group has on a GPU. */
export interface IGroupShare extends Pick<
  IShare,
  'resident' | 'unevictable' | 'swapped'
> {
  id: string;
  name: string;
  /** It is hibernated. */
  asleep: boolean;
}

/** Bytes that the driver may keep on a GPU for one that is hibernated, which nobody can tell from others' use. */
const RESIDUE = 16 * 1024 ** 2;

/** Whether what is on a GPU without us is no more than what hibernated notebooks leave there. */
export function isResidue(
  { foreign }: Pick<IGpu, 'foreign'>,
  shares: readonly IGroupShare[]
): boolean {
  return foreign <= RESIDUE * shares.filter(({ asleep }) => asleep).length;
}

/** What the groups have on each GPU, by its uuid; the same arrays where it is as before. */
export function makeShares(
  groups: readonly IGroup[],
  before: ReadonlyMap<string, IGroupShare[]> = new Map()
): Map<string, IGroupShare[]> {
  const shares = new Map<string, IGroupShare[]>();
  for (const { id, name, state, gpus } of groups) {
    const asleep = state === 'hibernated' || state === 'waking';
    for (const { uuid, resident, unevictable, swapped } of gpus) {
      const share = { id, name, resident, unevictable, swapped, asleep };
      const others = shares.get(uuid);
      if (others) {
        others.push(share);
      } else {
        shares.set(uuid, [share]);
      }
    }
  }
  for (const [uuid, now] of shares) {
    const known = before.get(uuid);
    if (known && areSame(known, now)) {
      shares.set(uuid, known);
    }
  }
  return shares;
}

function areSame(
  a: readonly IGroupShare[],
  b: readonly IGroupShare[]
): boolean {
  return (
    a.length === b.length &&
    a.every((one, index) => {
      const other = b[index];
      return (
        other !== undefined &&
        one.id === other.id &&
        one.name === other.name &&
        one.resident === other.resident &&
        one.unevictable === other.unevictable &&
        one.swapped === other.swapped &&
        one.asleep === other.asleep
      );
    })
  );
}
