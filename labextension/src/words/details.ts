// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup, IStatus } from '../core/status';
import {
  isRunning,
  isWaiting,
  memoryOf,
  showsBackground
} from '../core/status';
import type { ITranslation } from '../core/translation';
import { availabilityText, thisNotebook, unsharedText } from './availability';
import { whyText } from './reasons';
import type { IWording } from './short';
import { leftText, waitText } from './short';
import {
  boundText,
  classText,
  freedText,
  memoryText,
  prefetchText,
  sleepTitle,
  stateText,
  tiersText,
  turnText,
  wakeText,
  whereText,
  preferencesText
} from './states';

/**
 * The state of a group or the reason for its wait, where its memory is, and on which GPU.
 *
 * @param gpus - The numbers of the GPUs by their uuids; null for a single GPU.
 */
export function detailText(
  group: IGroup,
  wording: IWording,
  now: number,
  gpus: ReadonlyMap<string, number> | null = null
): string {
  const { trans } = wording;
  const parts: string[] = [];
  if (
    isWaiting(group) ||
    (group.state === 'restoring' && group.reason !== null)
  ) {
    // A row shows one time: the estimate, or otherwise the time in the reason.
    const left = isWaiting(group) ? leftText(group, trans, now) : null;
    parts.push(
      ...(left === null ? [] : [left]),
      whyText(group, wording, left === null ? now - group.at : null)
    );
  } else {
    parts.push(turnText(group, trans, now) ?? stateText(group, trans, now));
    if (group.state === 'hibernated' && group.hibernation) {
      parts.push(
        wakeText(group.hibernation, trans) ||
          freedText(group.hibernation, wording)
      );
    } else if (!isRunning(group)) {
      parts.push(whereText(group, wording));
    }
  }
  const numbers = gpusText(group, gpus, trans);
  if (numbers) {
    parts.push(numbers);
  }
  return parts.join(' · ');
}

/** The GPUs that a group is on; '' if there is only one GPU. */
export function gpusText(
  group: IGroup,
  gpus: ReadonlyMap<string, number> | null,
  trans: ITranslation
): string {
  const numbers = group.gpus
    .map(({ uuid }) => gpus?.get(uuid))
    .filter((index): index is number => index !== undefined)
    .sort((a, b) => a - b);
  return numbers.length === 0
    ? ''
    : trans._n(
        'GPU\u00a0%2',
        'GPUs\u00a0%2',
        numbers.length,
        numbers.join(', ')
      );
}

/** The tooltip of the status bar item; '' if there is nothing to add to its text. */
export function statusTitle(
  status: IStatus,
  kernelId: string | null,
  group: IGroup | null,
  wording: IWording,
  now: number
): string {
  const { trans } = wording;
  const lines: string[] = [];
  const unavailable = availabilityText(status.availability, trans);
  if (unavailable) {
    lines.push(unavailable.title);
  }
  const unshared = status.unshared.find(
    ({ kernel_id }) => kernel_id === kernelId
  );
  if (group) {
    lines.push(
      detailsOf(group, wording, now, showsBackground(group, status.groups))
    );
  } else if (unshared && !unavailable) {
    const notebook = thisNotebook(trans);
    const { title, text } = unsharedText(notebook, unshared, trans);
    lines.push(title, text);
  }
  return lines.join('\n');
}

/**
 * The state of a group, one line for each fact.
 *
 * @param background - Whether its low priority makes a difference now.
 */
export function detailsOf(
  group: IGroup,
  wording: IWording,
  now: number,
  background: boolean
): string {
  const { trans } = wording;
  const elapsed = now - group.at;
  const memory = memoryOf(group);
  const lines = [
    memoryText(memory, wording),
    tiersText(memory, wording),
    sleepTitle(group, trans)
  ];
  if (isWaiting(group)) {
    lines.unshift(
      waitText(group, trans, now),
      whyText(group, wording, elapsed)
    );
    if (group.estimate) {
      lines.splice(1, 0, boundText(group.estimate, trans, elapsed));
    }
  } else {
    lines.unshift(stateText(group, trans, now));
  }
  if (group.prefetch) {
    lines.push(prefetchText(group.prefetch, trans));
  } else if (group.state === 'idle_lease') {
    lines.push(
      trans.__('Idle lease: it can use the GPU again without waiting.')
    );
  }
  return [
    ...lines,
    group.class === 'background' && !background
      ? null
      : classText(group, trans),
    ...preferencesText(group.preferences, wording)
  ]
    .filter(Boolean)
    .join('\n');
}
