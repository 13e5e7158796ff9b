// SPDX-License-Identifier: BSD-3-Clause
import type { IGpu, IGroup, IShare } from './status';
import { isRunning, isWaiting } from './status';

/** Seconds of rest after which a GPU is counted among the idle ones. */
export const REST = 60;

/** The time since which a GPU has been at rest; Infinity while it is busy or draining, or a notebook is waiting for it. */
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

/** The memory of a group on one GPU. */
export interface IGroupShare extends Pick<
  IShare,
  'resident' | 'unevictable' | 'swapped'
> {
  id: string;
  name: string;
  /** It is hibernated. */
  asleep: boolean;
}

/** Bytes that the driver may keep on a GPU for a hibernated group. They look like memory of other programs. */
const RESIDUE = 16 * 1024 ** 2;

/** Whether the memory of other programs is no more than hibernated notebooks leave behind. */
export function isResidue(
  { foreign }: Pick<IGpu, 'foreign'>,
  shares: readonly IGroupShare[]
): boolean {
  return foreign <= RESIDUE * shares.filter(({ asleep }) => asleep).length;
}

/** The memory of the groups on each GPU, by its uuid. Unchanged arrays stay the same objects. */
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
