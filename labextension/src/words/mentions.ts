// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup } from '../core/status';
import { printable } from './names';

/** What a group is called in a sentence. */
export function nameIn(
  names: ReadonlyMap<string, string>,
  group: IGroup
): string {
  return isolate(wordName(names.get(group.id) ?? group.name));
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
