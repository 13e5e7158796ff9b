// SPDX-License-Identifier: BSD-3-Clause
import type { Units } from '../core/format';
import { formatEstimate } from '../core/format';
import type { ICode, IEstimate, IGroup } from '../core/status';
import { isReady } from '../core/status';
import type { ITranslation } from '../core/translation';
import { shorten } from './mentions';
import type { Names } from './names';

/** The options for texts. */
export interface IWording {
  trans: ITranslation;
  units: Units;
  names: Names;
}

/** A place in the queue: `2nd`. */
export function placeText(
  position: number | null,
  trans: ITranslation
): string {
  const place = position ?? 1;
  const last = Math.floor((place % 100) / 10) === 1 ? 0 : place % 10;
  switch (last) {
    case 1:
      return trans.__('%1st', place);
    case 2:
      return trans.__('%1nd', place);
    case 3:
      return trans.__('%1rd', place);
    default:
      return trans.__('%1th', place);
  }
}

/**
 * How much longer a group has to wait: `about 4 s`.
 *
 * @param elapsed - Seconds since the scheduler made the estimate.
 */
export function estimateText(
  estimate: IEstimate,
  trans: ITranslation,
  elapsed = 0
): string {
  const left = estimate.seconds - elapsed;
  if (left >= 0.5) {
    return trans.__('about %1', formatEstimate(left));
  }
  return elapsed > estimate.high + 1
    ? trans.__('longer than expected')
    : trans.__('any moment');
}

/** What a button does that shows a notebook. */
export function goToText(name: string, trans: ITranslation): string {
  return trans.__('Go to %1', name);
}

/** The longest name on a button. */
const LONGEST_LABEL = 20;

/** The label of such a button, with a short form of the name. */
export function goToLabel(name: string, trans: ITranslation): string {
  return goToText(shorten(name, LONGEST_LABEL), trans);
}

/** The title of the panel. */
export function titleText(trans: ITranslation): string {
  return trans.__('GPU sharing');
}

/** The title of the timeline in the main area. */
export function timelineText(trans: ITranslation): string {
  return trans.__('GPU timeline');
}

/** The text while data is loading. */
export function loadingText(trans: ITranslation): string {
  return trans.__('Loading…');
}

/** A state with the word GPU, for places whose context does not mention it. */
export function gpuText(text: string, trans: ITranslation): string {
  return trans.__('GPU: %1', text);
}

/** The state of a notebook that does not share the GPU. */
export function unsharedName(trans: ITranslation): string {
  return trans.__('GPU: not shared');
}

/** How much memory is on the GPU. */
export function onGpuText(size: string, trans: ITranslation): string {
  return trans.__('%1 on the GPU', size);
}

/** How much is on disk. */
export function diskText(size: string, trans: ITranslation): string {
  return trans.__('%1 on disk', size);
}

/** How much is in host memory. */
export function hostMemoryText(size: string, trans: ITranslation): string {
  return trans.__('%1 in host memory', size);
}

/** The state of a group that its user has frozen. */
export function frozenText(trans: ITranslation): string {
  return trans.__('frozen');
}

/** The state of a group, in a few words. */
export function stateName(
  group: Pick<IGroup, 'state' | 'prefetch'>,
  trans: ITranslation
): string {
  if (isReady(group)) {
    return trans.__('ready');
  }
  switch (group.state) {
    case 'running':
      return trans.__('running');
    case 'finishing':
      return trans.__('finishing');
    case 'waiting':
      return trans.__('waiting');
    case 'restoring':
      return trans.__('restoring');
    case 'hibernated':
      return trans.__('hibernated');
    case 'waking':
      return trans.__('waking');
    case 'prefetching':
      return trans.__('getting ready');
    case 'idle_lease':
      return trans.__('idle lease');
    case 'idle':
      return trans.__('idle');
    // Newer schedulers may report other states.
    default:
      return group.state;
  }
}

/** Whether GPU sharing works, in a few words. */
export function linkText(
  { code }: ICode,
  trans: ITranslation
): { state: 'good' | 'starting' | 'bad'; text: string } {
  switch (code) {
    case 'ok':
      return { state: 'good', text: trans.__('live') };
    case 'starting':
      return { state: 'starting', text: trans.__('starting') };
    case 'server_unreachable':
      return { state: 'bad', text: trans.__('connection lost') };
    default:
      return { state: 'bad', text: trans.__('not shared') };
  }
}

/** How long a group still has to wait, or to wake up, as of the scheduler's message; null if unknown. */
export function estimateOf({ estimate, reason }: IGroup): IEstimate | null {
  if (estimate) {
    return estimate;
  }
  const seconds = reason?.code === 'waking' ? reason.params['estimate'] : null;
  return typeof seconds === 'number'
    ? { seconds, low: seconds, high: seconds }
    : null;
}

/** How much longer a group has to wait, or to wake up: `about 4 s`; null if unknown. */
export function leftText(
  group: IGroup,
  trans: ITranslation,
  now: number
): string | null {
  const estimate = estimateOf(group);
  return estimate && estimateText(estimate, trans, now - group.at);
}

/** `2nd, about 4 s`. */
export function waitText(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const place =
    group.state === 'waking'
      ? stateName(group, trans)
      : placeText(group.position, trans);
  const left = leftText(group, trans, now);
  return left === null ? place : trans.__('%1, %2', place, left);
}
