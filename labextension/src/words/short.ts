// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IDocuments } from '../state/documents';
import type { Units } from '../core/format';
import { formatDuration } from '../core/format';
import type { ICode, IEstimate, IGroup, IStatus } from '../core/status';
import type { IGpuShareModel } from '../tokens';

/** What groups are called, by their ids. */
export type Names = ReadonlyMap<string, string>;

/** How this page words things. */
export interface IWording {
  trans: TranslationBundle;
  units: Units;
  names: Names;
}

/** Characters that change what is shown around them: controls, line ends, and overrides of the direction of writing. */
const UNSAFE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** A name of a file or program as it can be shown: `\x1b` and the like in the place of such characters. */
export function printable(name: string): string {
  return name.replace(UNSAFE, character => {
    const code = character.charCodeAt(0);
    const digits = code.toString(16);
    return code < 0x100
      ? `\\x${digits.padStart(2, '0')}`
      : `\\u${digits.padStart(4, '0')}`;
  });
}

/** What a notebook is called in a row: its file, without the folders. */
export function shortName(name: string): string {
  return printable(
    name.endsWith('.ipynb') ? name.slice(name.lastIndexOf('/') + 1) : name
  );
}

/** What a notebook is called in a sentence. */
export function wordName(name: unknown): string {
  return typeof name === 'string' ? name.replace(/\.ipynb\b/g, '') : '';
}

/** A name whose middle gives way: its folder and its end tell it from others. */
export function shorten(name: string, length: number): string {
  const tail = Math.floor((length - 1) / 3);
  const letters = [...name];
  return letters.length > length
    ? `${letters.slice(0, length - 1 - tail).join('')}…${letters.slice(-tail).join('')}`
    : name;
}

/** Letters of scripts that are written from right to left. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** Whether a name has letters that are written from right to left. */
export function isRightToLeft(name: string): boolean {
  return RIGHT_TO_LEFT.test(name);
}

/** A name for a sentence: one that is written from right to left leaves the words around it in their order. */
export function isolate(name: string): string {
  return isRightToLeft(name) ? `\u2068${name}\u2069` : name;
}

/** A place in the queue: `2nd`. */
export function placeText(
  position: number | null,
  trans: TranslationBundle
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
 * How long one that waits has to wait still: `about 4 s`.
 *
 * @param elapsed - Seconds since the scheduler said so.
 */
export function estimateText(
  estimate: IEstimate,
  trans: TranslationBundle,
  elapsed = 0
): string {
  const left = estimate.seconds - elapsed;
  if (left >= 0.5) {
    return trans.__('about %1', formatDuration(left));
  }
  return elapsed > estimate.high + 1
    ? trans.__('longer than expected')
    : trans.__('any moment');
}

/** What a group does, in a word or two. */
export function stateName(group: IGroup, trans: TranslationBundle): string {
  switch (group.state) {
    case 'running':
      return trans.__('running');
    case 'yielding':
      return trans.__('yielding');
    case 'waiting':
      return trans.__('waiting');
    case 'moving':
      return trans.__('moving in');
    case 'hibernated':
      return trans.__('hibernated');
    case 'waking':
      return trans.__('waking');
    case 'held':
      return trans.__('idle lease');
    default:
      return trans.__('idle');
  }
}

/** Whether it works, in a word or two. */
export function linkText(
  { code }: ICode,
  trans: TranslationBundle
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

/** How things are worded now; names are looked for only if something is named. */
export function wordingOf(
  status: IStatus,
  model: IGpuShareModel,
  documents: IDocuments,
  trans: TranslationBundle
): IWording {
  let names: Names | null = null;
  return {
    trans,
    units: model.preferences.units,
    get names() {
      return (names ??= documents.names(status));
    }
  };
}

/** How long a group waits, or wakes, as of the time when the scheduler said so; null where nobody can say. */
export function estimateOf({ estimate, reason }: IGroup): IEstimate | null {
  if (estimate) {
    return estimate;
  }
  const seconds = reason?.code === 'waking' ? reason.params['estimate'] : null;
  return typeof seconds === 'number'
    ? { seconds, low: seconds, high: seconds }
    : null;
}

/** How much longer one waits, or wakes: `about 4 s`; null where nobody can say. */
export function leftText(
  group: IGroup,
  trans: TranslationBundle,
  now: number
): string | null {
  const estimate = estimateOf(group);
  return estimate && estimateText(estimate, trans, now - group.at);
}

/** `2nd, about 4 s`. */
export function waitText(
  group: IGroup,
  trans: TranslationBundle,
  now: number
): string {
  const place =
    group.state === 'waking'
      ? trans.__('waking')
      : placeText(group.position, trans);
  const left = leftText(group, trans, now);
  return left === null ? place : trans.__('%1, %2', place, left);
}
