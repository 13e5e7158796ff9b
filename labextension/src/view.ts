// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import { formatBytes, formatDuration, formatPart } from './format';
import type { IGpu, IGroup, IHost, IStatus } from './status';
import type { IExplanation } from './words';
import {
  availabilityText,
  memoryText,
  noGpuText,
  nobodyText,
  noticeText,
  reasonText,
  shortName,
  stateText
} from './words';

/** All that the panel shows, in words and numbers. */
export interface IView {
  /** Why nothing, or not all, is shared. */
  explanation: IExplanation | null;
  gpus: IGpuView[];
  running: IRow[];
  waiting: IRow[];
  idle: IRow[];
  notices: string[];
  /** Whether the words change as time passes. */
  ticking: boolean;
  /** What to say aloud when it changes: the state of the current notebook. */
  announcement: string;
}

export interface IGpuView {
  uuid: string;
  name: string;
  label: string;
  segments: ISegment[];
  used: string;
  host: string;
  /** What the parts of the bar are that belong to no notebook. */
  legend: ILegend[];
}

export interface ILegend {
  colour: Colour;
  text: string;
}

/** A number of the palette, or what the memory is if it is no notebook's. */
export type Colour = number | 'contexts' | 'foreign' | 'ghosts';

/** A part of the memory bar. */
export interface ISegment {
  key: string;
  colour: Colour;
  percent: number;
  title: string;
}

export interface IRow {
  id: string;
  name: string;
  /** The notebook's path, if it is one of this server's. */
  path: string | null;
  colour: number;
  position: number | null;
  current: boolean;
  detail: string;
  /** The number that matters: memory, or how long it has waited. */
  figure: string;
  figureTitle: string;
  /** What will be, as far as one can tell. */
  outlook: string;
}

/** What the view needs to know besides the status. */
export interface IContext {
  trans: TranslationBundle;
  colours: ReadonlyMap<string, number>;
  /** The id of the kernel that belongs to the notebook in front. */
  kernelId: string | null;
  /** Seconds since the status was made. */
  elapsed: number;
}

/** The status as the panel shows it. */
export function makeView(status: IStatus, context: IContext): IView {
  const { trans } = context;
  const rows = (groups: IGroup[]): IRow[] =>
    groups.map(group => makeRow(group, status, context));
  const waiting = status.groups
    .filter(group => group.state === 'waiting')
    .sort((a, b) => (a.position ?? Infinity) - (b.position ?? Infinity));
  const running = status.groups.filter(isRunning);
  const idle = status.groups
    .filter(group => group.state !== 'waiting' && !isRunning(group))
    .sort((a, b) => b.since - a.since);
  let explanation = availabilityText(status.availability, trans);
  if (explanation === null && status.gpus.length === 0) {
    explanation = noGpuText(trans);
  } else if (explanation === null && status.groups.length === 0) {
    explanation = nobodyText(trans);
  }
  const names = new Map(
    status.groups.map(group => [group.id, shortName(group.name)])
  );
  return {
    explanation,
    gpus: status.gpus.map(gpu => makeGpu(gpu, status, context)),
    running: rows(running),
    waiting: rows(waiting),
    idle: rows(idle),
    notices: status.notices.map(notice =>
      noticeText(names.get(notice.group) ?? notice.group, notice, trans)
    ),
    ticking: status.groups.length > 0,
    announcement: announce(status, context)
  };
}

/** Whether a group has the GPU now; one that only keeps its lease is idle to people. */
function isRunning(group: IGroup): boolean {
  return (
    ['running', 'yielding', 'moving'].includes(group.state) ||
    (group.state === 'held' && group.cell !== null)
  );
}

function makeRow(group: IGroup, status: IStatus, context: IContext): IRow {
  const { trans, elapsed, colours } = context;
  const now = status.time + elapsed;
  const sum = (key: 'footprint' | 'resident' | 'swapped' | 'pinned'): number =>
    group.gpus.reduce((total, gpu) => total + gpu[key], 0);
  const memory = formatBytes(sum('footprint') + sum('pinned'));
  const row = {
    id: group.id,
    name: shortName(group.name),
    path: group.session?.path ?? null,
    colour: colours.get(group.id) ?? 0,
    position: group.position,
    current: context.kernelId !== null && isOf(group, context.kernelId)
  };
  if (group.state === 'waiting') {
    return {
      ...row,
      detail: reasonText(group.reason, trans, elapsed),
      figure: formatDuration(now - group.since),
      figureTitle: trans.__('waited so far'),
      outlook:
        group.estimate === null
          ? ''
          : trans.__(
              'its turn in about %1',
              formatDuration(group.estimate - elapsed)
            )
    };
  }
  const where = memoryText(
    sum('resident') + sum('pinned'),
    sum('swapped'),
    trans
  );
  const state =
    group.state === 'moving' && group.reason !== null
      ? reasonText(group.reason, trans, elapsed)
      : stateText(group, trans, now, elapsed);
  return {
    ...row,
    position: null,
    detail: isRunning(group) ? state : `${state} · ${where}`,
    figure: memory,
    figureTitle: trans.__('GPU memory of this notebook: %1', where),
    outlook: ''
  };
}

function isOf(group: IGroup, kernelId: string): boolean {
  return group.id === kernelId || group.session?.kernel_id === kernelId;
}

function makeGpu(gpu: IGpu, status: IStatus, context: IContext): IGpuView {
  const { trans } = context;
  const segments: ISegment[] = [];
  const legend: ILegend[] = [];
  const add = (
    key: string,
    colour: Colour,
    bytes: number,
    label: string
  ): void => {
    if (bytes > 0 && gpu.total > 0) {
      segments.push({
        key,
        colour,
        percent: (100 * bytes) / gpu.total,
        title: trans.__('%1: %2', label, formatBytes(bytes))
      });
      if (typeof colour === 'string') {
        legend.push({
          colour,
          text: trans.__('%1 %2', label, formatBytes(bytes))
        });
      }
    }
  };
  let swapped = 0;
  for (const group of status.groups) {
    for (const share of group.gpus) {
      if (share.uuid === gpu.uuid) {
        const bytes = share.resident + share.pinned;
        add(
          group.id,
          context.colours.get(group.id) ?? 0,
          bytes,
          shortName(group.name)
        );
        swapped += share.swapped;
      }
    }
  }
  add('contexts', 'contexts', gpu.contexts, trans.__('CUDA contexts'));
  add('ghosts', 'ghosts', gpu.ghosts, trans.__('being freed'));
  add('foreign', 'foreign', gpu.foreign, trans.__('other programs'));
  const [used, total] = formatPart(gpu.used, gpu.total);
  return {
    uuid: gpu.uuid,
    name: gpu.name,
    label: trans.__('GPU %1', gpu.index),
    segments,
    used: trans.__('%1 of %2 in use', used, total),
    host: hostText(swapped, status.host, trans),
    legend
  };
}

function hostText(
  swapped: number,
  host: IHost | null,
  trans: TranslationBundle
): string {
  const ready = Math.max(
    0,
    (host?.pool?.prepared ?? 0) - (host?.pool?.in_use ?? 0)
  );
  if (swapped > 0 && ready > 0) {
    return trans.__(
      '%1 in host memory, %2 more ready',
      formatBytes(swapped),
      formatBytes(ready)
    );
  }
  if (ready > 0) {
    return trans.__('%1 of host memory ready', formatBytes(ready));
  }
  return swapped > 0 ? trans.__('%1 in host memory', formatBytes(swapped)) : '';
}

/** The state of the current notebook in words that stay the same until it changes. */
function announce(status: IStatus, context: IContext): string {
  const { trans, kernelId } = context;
  const group = status.groups.find(
    group => kernelId !== null && isOf(group, kernelId)
  );
  if (!group) {
    return '';
  }
  if (group.state === 'waiting') {
    return trans.__(
      '%1 waits for the GPU, position %2',
      shortName(group.name),
      group.position ?? 1
    );
  }
  return isRunning(group)
    ? trans.__('%1 has the GPU', shortName(group.name))
    : trans.__('%1 does not use the GPU', shortName(group.name));
}
