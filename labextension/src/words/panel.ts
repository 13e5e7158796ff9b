// SPDX-License-Identifier: BSD-3-Clause
import type { Units } from '../core/format';
import { formatPart } from '../core/format';
import type { ITranslation } from '../core/translation';

// Texts that several parts of the panel, or the panel and the Hub page, use.

/** The label of a button that opens a menu with all actions. */
export function moreText(trans: ITranslation): string {
  return trans.__('More actions');
}

/** The label of the buttons of one notebook. */
export function actionsText(name: string, trans: ITranslation): string {
  return trans.__('Actions for %1', name);
}

/** The heading of the notebooks that are running, and the state of one. */
export function runningText(trans: ITranslation): string {
  return trans.__('Running');
}

/** The heading of the notebooks that are idle, and the state of one. */
export function idleText(trans: ITranslation): string {
  return trans.__('Idle');
}

/**
 * How busy a GPU is; '' if that is unknown.
 *
 * The driver reports an average over about the last second, which is still 0 when a notebook
 * has just started to run.
 *
 * @param isInUse - Whether a notebook is running on the GPU.
 */
export function busyText(
  percent: number | null,
  isInUse: boolean,
  trans: ITranslation
): string {
  return percent === null || (isInUse && Math.round(percent) === 0)
    ? ''
    : trans.__('%1% busy', Math.round(percent));
}

/** `5.6 of 8 GiB`. */
export function partText(
  part: number,
  whole: number,
  units: Units,
  trans: ITranslation
): string {
  const [used, total] = formatPart(part, whole, units);
  return trans.__('%1 of %2', used, total);
}
