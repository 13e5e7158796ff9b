// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes, formatDuration } from '../core/format';
import type { IGroup } from '../core/status';
import { isReady, isWaiting, memoryOf } from '../core/status';
import type { ITranslation } from '../core/translation';
import { gpusText } from './details';
import { idleText, runningText } from './panel';
import { whyText } from './reasons';
import type { IWording } from './short';
import {
  diskText,
  hostMemoryText,
  leftText,
  onGpuText,
  placeText
} from './short';
import { freedText, isBrief, prefetchText, turnText, wakeText } from './states';

/** The state of the active notebook, with the one time that matters: `Waiting, 2nd · about 9 s`. */
export function cardState(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const name = stateOf(group, trans, now);
  const isStopped = group.preferences.frozen || group.preferences.on_hold;
  const time =
    isStopped || !isWaiting(group)
      ? turnText(group, trans, now)
      : leftText(group, trans, now);
  return time === null ? name : [name, time].join(' · ');
}

function stateOf(group: IGroup, trans: ITranslation, now: number): string {
  if (group.preferences.on_hold) {
    return trans.__('On hold');
  }
  if (group.preferences.frozen) {
    return trans.__('Frozen');
  }
  if (isReady(group)) {
    return trans.__('Ready');
  }
  const seconds = now - (group.cell?.since ?? group.since);
  const since = formatDuration(seconds);
  switch (group.state) {
    case 'waiting':
      return trans.__('Waiting, %1', placeText(group.position, trans));
    case 'waking':
      return trans.__('Waking up');
    case 'running':
      return group.yields_in === null
        ? trans.__('Running for %1', since)
        : runningText(trans);
    case 'finishing':
      return trans.__('Finishing its queued GPU work');
    case 'restoring':
      return trans.__('Restoring');
    case 'hibernated':
      return trans.__('Hibernated');
    case 'prefetching':
      return trans.__('Getting ready');
    case 'idle_lease':
      return trans.__('Idle lease');
    case 'idle':
      if (group.cell) {
        return trans.__('Cell running, not using the GPU');
      }
      return isBrief(seconds)
        ? idleText(trans)
        : trans.__('Idle for %1', since);
    // Newer schedulers may report other states.
    default:
      return group.state;
  }
}

/** Why the active notebook is in its state. */
export function cardReason(
  group: IGroup,
  wording: IWording,
  now: number
): string {
  const { trans } = wording;
  if (group.preferences.on_hold) {
    return trans.__('Only an administrator can resume it.');
  }
  if (group.preferences.frozen) {
    return trans.__('It cannot use the GPU until you unfreeze it.');
  }
  if (group.prefetch) {
    return prefetchText(group.prefetch, trans);
  }
  switch (group.state) {
    case 'waiting':
    case 'waking':
    case 'restoring': {
      // The state has a time already, if the scheduler has estimated one.
      const isTimed = leftText(group, trans, now) !== null;
      return group.reason && group.reason.code !== 'waking'
        ? whyText(group, wording, isTimed ? null : now - group.at)
        : '';
    }
    case 'idle_lease':
      return trans.__('It can use the GPU again without waiting.');
    default:
      return '';
  }
}

/** How many cells follow in the active notebook; '' if there are none. */
export function cardQueue(
  { queued = 0 }: Pick<IGroup, 'queued'>,
  trans: ITranslation
): string {
  return queued
    ? trans._n('%1 more cell is queued', '%1 more cells are queued', queued)
    : '';
}

/**
 * The memory that the active notebook keeps on the GPU, and on which one.
 *
 * @param gpus - The numbers of the GPUs by their uuids; null for a single GPU.
 */
export function cardMemory(
  group: IGroup,
  wording: IWording,
  gpus: ReadonlyMap<string, number> | null
): string {
  const { trans, units } = wording;
  const { resident, swapped, disk } = memoryOf(group);
  const parts: string[] = [];
  if (group.state === 'hibernated' && group.hibernation) {
    parts.push(
      freedText(group.hibernation, wording),
      ...[wakeText(group.hibernation, trans)].filter(Boolean)
    );
  } else {
    if (resident > 0) {
      const size = formatBytes(resident, units);
      parts.push(
        group.state === 'idle'
          ? trans.__('keeps %1 on the GPU', size)
          : onGpuText(size, trans)
      );
    }
    if (swapped > 0) {
      parts.push(hostMemoryText(formatBytes(swapped, units), trans));
    }
    if (disk > 0) {
      parts.push(diskText(formatBytes(disk, units), trans));
    }
    if (parts.length === 0) {
      parts.push(trans.__('nothing on the GPU'));
    }
  }
  const numbers = gpusText(group, gpus, trans);
  return [...parts, ...(numbers ? [numbers] : [])].join(' · ');
}
