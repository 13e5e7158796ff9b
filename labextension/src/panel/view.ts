// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import { aloneText } from '../words/refusals';
import { formatBytes, formatDuration, formatPart } from '../core/format';
import type {
  ICode,
  IGpu,
  IGroup,
  IHibernation,
  IHost,
  INotice,
  ISettings,
  IShare,
  IStatus,
  Params
} from '../core/status';
import { isRunning, isWaiting, memoryOf } from '../core/status';
import type { IExplanation } from '../words/sentences';
import type { IWording } from '../words/short';
import { isolate, shortName } from '../words/short';
import {
  availabilityText,
  memoryText,
  sleepText,
  stateText,
  text,
  whyText
} from '../words/sentences';

/** What belongs to no notebook, or to many small ones. */
export type Part =
  | 'contexts'
  | 'foreign'
  | 'ghosts'
  | 'free'
  | 'others'
  | 'pinned'
  | 'resident'
  | 'swapped';

/** A part of a memory bar. */
export interface ISegment {
  key: string;
  part: Part;
  /** A number of the palette, or null if it is no notebook's. */
  colour: number | null;
  percent: number;
  /** What it is, and how much. */
  title: string;
}

export interface IGpuView {
  /** What is on the GPU. */
  segments: ISegment[];
  /** What was moved to the host's memory, as parts of what the host may hold. */
  host: ISegment[];
  /** The parts of the bar that belong to no notebook. */
  legend: { part: Part; text: string }[];
  used: string;
  hostText: string;
}

/** With more groups than these, those of less than MERGED percent share a segment. */
const SEGMENTS = 12;
const MERGED = 1.5;

export interface ISections {
  running: IGroup[];
  waiting: IGroup[];
  idle: IGroup[];
}

/** Each group in the section that people expect, in the order in which they look for it. */
export function makeSections(groups: readonly IGroup[]): ISections {
  return {
    running: groups.filter(isRunning),
    waiting: groups
      .filter(isWaiting)
      // One that wakes has no place: it is served already.
      .sort((a, b) => placeOf(a) - placeOf(b)),
    idle: groups
      .filter(group => !isWaiting(group) && !isRunning(group))
      .sort((a, b) => b.since - a.since)
  };
}

function placeOf({ state, position }: IGroup): number {
  return position ?? (state === 'waking' ? 0 : Infinity);
}

/** The rows of a section that is not shown whole: the first, and the one of the notebook in front. */
export function firstRows(
  groups: IGroup[],
  limit: number,
  current: string | null
): IGroup[] {
  return groups.length <= limit + 1
    ? groups
    : groups.filter((group, index) => index < limit || group.id === current);
}

/** Why there is nothing to see, or not all. */
export function explain(
  status: IStatus,
  trans: TranslationBundle
): IExplanation | null {
  const explanation = availabilityText(status.availability, trans);
  if (explanation !== null) {
    return explanation;
  }
  if (status.gpus.length === 0) {
    return noGpuText(trans);
  }
  return status.groups.length === 0 && status.unshared.length === 0
    ? nobodyText(trans)
    : null;
}

/** What is shown when all is well and nobody is there. */
export function nobodyText(trans: TranslationBundle): IExplanation {
  return {
    title: trans.__('Nobody uses the GPU yet'),
    text: trans.__(
      'Run a cell that uses CUDA: its notebook will appear here, and others will wait their turn when memory is short.'
    )
  };
}

/** What is shown when the driver has no GPU. */
export function noGpuText(trans: TranslationBundle): IExplanation {
  return {
    title: trans.__('No GPU was found'),
    text: trans.__(
      'The NVIDIA driver is installed, but it shows no GPU. To see what is wrong, run:'
    ),
    command: 'gpushare doctor'
  };
}

/** A host with less than this part of its budget left has no memory for more. */
const FULL = 0.98;

/** What people should know: what the scheduler reports, and a host without memory. */
export function noticesOf({
  host,
  gpus,
  notices,
  unshared
}: Pick<IStatus, 'host' | 'gpus' | 'notices' | 'unshared'>): Pick<
  INotice,
  'group' | 'code' | 'params'
>[] {
  const isFull =
    host !== null && gpus.length > 0 && host.swapped >= FULL * host.budget;
  return [
    ...(isFull
      ? [{ group: '', code: 'host_full', params: { ...host } as Params }]
      : []),
    // What runs without us is listed with its remedy.
    ...notices.filter(
      ({ group }) => !unshared.some(({ kernel_id }) => kernel_id === group)
    )
  ];
}

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

/** Something that people should know about a group. */
export function noticeText(
  name: string,
  { code, params }: ICode,
  trans: TranslationBundle
): string {
  switch (code) {
    case 'started_without_interposer':
      return trans.__(
        '%1 uses the GPU without taking turns: its kernel did not start with GPU sharing. Restart the kernel to try again.',
        name
      );
    case 'policy_failed':
      return trans.__(
        'The policy "%1" failed, and "%2" took over: %3',
        text(params, 'policy'),
        text(params, 'instead'),
        text(params, 'error')
      );
    case 'stuck':
      return trans.__(
        '%1 was told to give the GPU up and does not answer. Others are served around it; interrupt or restart it.',
        name
      );
    case 'hibernation_stuck':
      return params['step'] === 'restore'
        ? trans.__('Waking %1 does not end; it goes on by itself.', name)
        : trans.__('Hibernating %1 does not end; it goes on by itself.', name);
    case 'host_full':
      return trans.__(
        'Host memory is full: swapped data takes %1 of %2. Memory of other notebooks cannot leave the GPU, so notebooks wait longer and allocations can fail. Shut down notebooks that you no longer need.',
        formatBytes(Number(params['swapped']) || 0, 'binary'),
        formatBytes(Number(params['budget']) || 0, 'binary')
      );
    case 'maintenance':
      return trans.__('Maintenance: %1', text(params, 'text'));
    case 'underreported':
      return trans.__(
        'A process of %1 holds %2 of GPU memory that it does not state',
        // Others are not told whose it is.
        text(params, 'user') || trans.__('another user'),
        formatBytes(Number(params['bytes']) || 0, 'binary')
      );
    case 'recording_ended':
      return trans.__('The recording to %1 ended.', text(params, 'file'));
    default:
      return (
        text(params, 'text') ||
        text(params, 'error') ||
        trans.__('%1: %2', name, code)
      );
  }
}

/** What a group has on a GPU. */
export interface IGroupShare extends Pick<
  IShare,
  'resident' | 'pinned' | 'swapped'
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
    for (const { uuid, resident, pinned, swapped } of gpus) {
      const share = { id, name, resident, pinned, swapped, asleep };
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
        one.pinned === other.pinned &&
        one.swapped === other.swapped &&
        one.asleep === other.asleep
      );
    })
  );
}

/** What the bar of a GPU is made of. */
export function makeGpu(
  gpu: IGpu,
  groups: readonly IGroupShare[],
  host: IHost | null,
  colours: ReadonlyMap<string, number>,
  wording: IWording
): IGpuView {
  const { trans, units, names } = wording;
  const size = (bytes: number): string => formatBytes(bytes, units);
  const labels: Partial<Record<Part, string>> = {
    contexts: trans.__('CUDA contexts'),
    foreign: isResidue(gpu, groups)
      ? trans.__('left by hibernated notebooks')
      : trans.__('other programs'),
    ghosts: trans.__('being freed'),
    free: trans.__('free')
  };
  const shares = groups.map(share => ({
    ...share,
    name: isolate(names.get(share.id) ?? shortName(share.name)),
    colour: colours.get(share.id) ?? 0
  }));
  const crowded = shares.length > SEGMENTS;
  const segment = (
    key: string,
    part: Part,
    bytes: number,
    whole: number,
    label: string,
    colour: number | null = null
  ): ISegment => ({
    key: `${key} ${part}`,
    part,
    colour,
    percent: whole > 0 ? (100 * bytes) / whole : 0,
    title: trans.__('%1: %2', label, size(bytes))
  });
  const stack = (
    whole: number,
    parts: ('resident' | 'pinned' | 'swapped')[]
  ): ISegment[] => {
    const result: ISegment[] = [];
    let [others, count] = [0, 0];
    for (const share of shares) {
      const bytes = parts.reduce((sum, part) => sum + share[part], 0);
      if (crowded && bytes > 0 && (100 * bytes) / whole < MERGED) {
        others += bytes;
        count++;
        continue;
      }
      for (const part of parts.filter(part => share[part] > 0)) {
        const { id, name, colour } = share;
        const label =
          part === 'pinned' ? trans.__('%1, cannot move', name) : name;
        result.push(segment(id, part, share[part], whole, label, colour));
      }
    }
    if (count > 0) {
      const label = trans._n('%1 small notebook', '%1 small notebooks', count);
      result.push(segment('', 'others', others, whole, label));
    }
    return result;
  };

  const segments = stack(gpu.total, ['resident', 'pinned']);
  const legend: IGpuView['legend'] = [];
  for (const part of ['contexts', 'ghosts', 'foreign'] as const) {
    if (gpu[part] > 0) {
      const label = labels[part] ?? '';
      segments.push(segment('', part, gpu[part], gpu.total, label));
      legend.push({
        part,
        text: trans.__('%1 %2', label, size(gpu[part]))
      });
    }
  }
  const pinned = shares.reduce((sum, share) => sum + share.pinned, 0);
  if (pinned > 0) {
    legend.unshift({
      part: 'pinned',
      text: trans.__('cannot move %1', size(pinned))
    });
  }
  if (gpu.free > 0) {
    legend.push({
      part: 'free',
      text: trans.__('free %1', size(gpu.free))
    });
  }
  const swapped = shares.reduce((sum, share) => sum + share.swapped, 0);
  const [used, total] = formatPart(gpu.used, gpu.total, units);
  return {
    segments,
    host:
      swapped > 0
        ? stack(Math.max(host?.budget ?? 0, swapped), ['swapped'])
        : [],
    legend,
    used: trans.__('%1 of %2 in use', used, total),
    hostText: hostText(swapped, host, wording)
  };
}

function hostText(
  swapped: number,
  host: IHost | null,
  { trans, units }: IWording
): string {
  const size = (bytes: number): string => formatBytes(bytes, units);
  const ready = Math.max(
    0,
    (host?.pool?.prepared ?? 0) - (host?.pool?.in_use ?? 0)
  );
  if (swapped > 0 && ready > 0) {
    return trans.__(
      '%1 in host memory, %2 more ready',
      size(swapped),
      size(ready)
    );
  }
  if (ready > 0) {
    return trans.__('%1 of host memory ready', size(ready));
  }
  return swapped > 0 ? trans.__('%1 in host memory', size(swapped)) : '';
}

/**
 * What a group does or waits for, where its memory is, and on which GPU.
 *
 * @param gpus - The numbers of the GPUs by their uuids, where there are several.
 */
export function detailText(
  group: IGroup,
  wording: IWording,
  now: number,
  gpus: ReadonlyMap<string, number> | null = null
): string {
  const { trans } = wording;
  const parts: string[] = [];
  if (isWaiting(group) || (group.state === 'moving' && group.reason !== null)) {
    parts.push(whyText(group, wording, null));
  } else {
    parts.push(stateText(group, trans, now));
    if (group.state === 'hibernated' && group.hibernation) {
      parts.push(sleepText(group.hibernation, wording));
    } else if (!isRunning(group)) {
      parts.push(whereText(group, wording));
    }
  }
  const numbers = group.gpus
    .map(({ uuid }) => gpus?.get(uuid))
    .filter((index): index is number => index !== undefined)
    .sort((a, b) => a - b);
  if (numbers.length > 0) {
    parts.push(
      trans._n(
        'GPU\u00a0%2',
        'GPUs\u00a0%2',
        numbers.length,
        numbers.join(', ')
      )
    );
  }
  return parts.join(' · ');
}

/** Where a group's memory is. */
export function whereText(group: IGroup, wording: IWording): string {
  const { resident, swapped } = memoryOf(group);
  return memoryText(resident, swapped, wording);
}

/** How much of its turn a group has had, in percent; null while nobody wants it to end. */
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
  // The scheduler's own quantum is not told: what was had and what is left make it.
  const whole =
    typeof quantum === 'number' && quantum > 0
      ? quantum
      : Math.max(0, now - group.since) + left;
  return whole > 0
    ? Math.round(100 * Math.min(1, Math.max(0, 1 - left / whole)))
    : 100;
}

/** The policy that is not worth a word. */
const USUAL = 'burst';

/** How the GPU is shared, in a word or two. */
export function modeText(
  { anti_thrash, quantum, policy }: ISettings,
  trans: TranslationBundle
): string {
  const mode = {
    auto: trans.__('automatic'),
    on: trans.__('one at a time'),
    off: trans.__('side by side')
  }[anti_thrash];
  const parts = [mode];
  if (quantum !== 'auto') {
    parts.push(formatDuration(quantum));
  }
  if (policy !== USUAL) {
    parts.push(trans.__('policy %1', policy));
  }
  return parts.join(' · ');
}

/** When idle notebooks hibernate, or why they do not; '' where the scheduler does not say. */
export function idlenessText(
  { hibernate_after }: ISettings,
  hibernation: IHibernation | null,
  trans: TranslationBundle
): string {
  if (hibernation?.able === false) {
    return trans.__(
      'Notebooks cannot be hibernated: %1.',
      aloneText(hibernation, trans)
    );
  }
  switch (hibernate_after) {
    case undefined:
      return '';
    case null:
      return trans.__('Idle notebooks do not hibernate.');
    default:
      return trans.__(
        'Notebooks hibernate when they have been idle for %1.',
        formatDuration(hibernate_after)
      );
  }
}

/** The state of a notebook in words that stay the same until it changes. */
export function announce(
  group: IGroup,
  name: string,
  trans: TranslationBundle
): string {
  if (group.state === 'hibernated') {
    return trans.__('%1 is hibernated', name);
  }
  if (group.state === 'waking') {
    return trans.__('%1 is being woken', name);
  }
  if (group.state === 'waiting') {
    return trans.__(
      '%1 waits for the GPU, position %2',
      name,
      group.position ?? 1
    );
  }
  return isRunning(group)
    ? trans.__('%1 has the GPU', name)
    : trans.__('%1 does not use the GPU', name);
}
