// SPDX-License-Identifier: BSD-3-Clause
import {
  formatBound,
  formatBytes,
  formatDuration,
  formatExactly,
  formatPercent
} from '../core/format';
import type {
  ICell,
  IEstimate,
  IGroup,
  ISleep,
  IGroupPreferences,
  IMemory,
  IPrefetch,
  Kind
} from '../core/status';
import { isReady, memoryOf } from '../core/status';
import type { ITranslation } from '../core/translation';
import { refusalText } from './refusals';
import type { IWording } from './short';
import {
  diskText,
  frozenText,
  hostMemoryText,
  onGpuText,
  stateName
} from './short';

/** The name of a kind of event. */
export function kindText(kind: Kind, trans: ITranslation): string {
  return {
    burst: stateName({ state: 'running' }, trans),
    wait: stateName({ state: 'waiting' }, trans),
    hibernated: stateName({ state: 'hibernated' }, trans),
    in: trans.__('restoring memory'),
    out: trans.__('evicting memory')
  }[kind];
}

/** Where a group's memory is. */
export function whereText(group: IGroup, wording: IWording): string {
  return memoryText(memoryOf(group), wording);
}

/** The time within which most such waits end; '' once that time has passed. */
export function boundText(
  estimate: IEstimate,
  trans: ITranslation,
  elapsed = 0
): string {
  const left = estimate.high - elapsed;
  return left >= 0.5
    ? trans.__('90% of waits like this end within %1.', formatBound(left))
    : '';
}

/** How long a wait took. */
export function waitedFor(duration: string, trans: ITranslation): string {
  return trans.__('waited %1', duration);
}

/** How long an unfinished event has lasted. */
export function soFarText(seconds: number, trans: ITranslation): string {
  return trans.__('%1 so far', formatExactly(seconds));
}

/** How long a group has been waiting, and how long such waits take. */
export function waitTitle(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const { estimate, since, at } = group;
  return [
    trans.__('Waiting for %1.', formatDuration(now - since)),
    estimate ? boundText(estimate, trans, now - at) : ''
  ]
    .filter(line => line)
    .join('\n');
}

/** How long a cell waited and ran: `waited 2.1 s, ran 0.8 s`. */
export function cellText(
  { waited, ran }: Pick<ICell, 'waited' | 'ran'>,
  trans: ITranslation
): string {
  return trans.__(
    'waited %1, ran %2',
    formatExactly(waited),
    formatExactly(ran)
  );
}

/** When the time slice of a running group ends: `turn ends within 3 s`; null if no group is waiting. */
export function turnText(
  { state, yields_in, at }: IGroup,
  trans: ITranslation,
  now: number
): string | null {
  if (state !== 'running' || yields_in === null) {
    return null;
  }
  const left = yields_in - (now - at);
  return left >= 0.5
    ? trans.__('turn ends within %1', formatBound(left))
    : trans.__('turn is about to end');
}

/** The state of a group that is not waiting, in a few words. */
export function stateText(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const seconds = now - (group.cell?.since ?? group.since);
  const since = formatDuration(seconds);
  const cell = group.cell && trans.__('cell running for %1', since);
  const afterCell = (text: string): string =>
    cell ? [cell, text].join(' · ') : text;
  if (isReady(group)) {
    return afterCell(stateName(group, trans));
  }
  switch (group.state) {
    case 'running': {
      const state = cell ?? trans.__('running for %1', since);
      const turn = turnText(group, trans, now);
      return turn === null ? state : [state, turn].join(' · ');
    }
    case 'prefetching':
      return afterCell(stageText(group, trans));
    case 'idle_lease':
      return cell || isBrief(seconds)
        ? afterCell(stateName(group, trans))
        : trans.__('idle lease for %1', since);
    case 'finishing':
      return trans.__('finishing its queued GPU work');
    case 'restoring':
      return trans.__('restoring its memory to the GPU');
    case 'hibernated':
      return trans.__('hibernated for %1', since);
    default:
      return cell
        ? trans.__('cell running for %1, not using the GPU', since)
        : isBrief(seconds)
          ? stateName({ state: 'idle' }, trans)
          : trans.__('idle for %1', since);
  }
}

/** Whether a notebook has been idle for too short a time to show how long. */
export function isBrief(seconds: number): boolean {
  return seconds < 1;
}

/** The stage of a group's prefetch. */
function stageText(group: IGroup, trans: ITranslation): string {
  switch (group.prefetch?.stage) {
    case 'evicting':
      return trans.__('getting ready: evicting idle memory');
    case 'waking':
      return trans.__('getting ready: waking up');
    case 'restoring':
      return trans.__('getting ready: restoring its memory');
    default:
      return stateName(group, trans);
  }
}

/** Why a group is getting ready; '' if the page has no words for it. */
export function prefetchText(
  { hint, likelihood }: IPrefetch,
  trans: ITranslation
): string {
  const part = formatPercent(Math.round(100 * likelihood) / 100);
  switch (hint) {
    case 'focus':
      return trans.__(
        'Its user has returned to it. In %1 of cases, GPU work follows within a minute.',
        part
      );
    case 'typing':
      return trans.__(
        'Its user is typing in it. In %1 of cases, GPU work follows within a minute.',
        part
      );
    case 'queued':
      return trans.__(
        'More of its cells are queued. In %1 of cases, GPU work follows within a minute.',
        part
      );
    case 'cell':
      return trans.__(
        'Its cell has begun. In %1 of cases, GPU work follows within a minute.',
        part
      );
    case 'ready':
      return trans.__('Its user asked to get it ready.');
    default:
      return '';
  }
}

/** How much GPU memory hibernating a group has freed. */
export function freedText(
  { frees }: ISleep,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string {
  return trans.__('freed %1 of GPU memory', formatBytes(frees, units));
}

/** How long waking a group takes; '' if that is unknown. */
export function wakeText({ estimate }: ISleep, trans: ITranslation): string {
  return estimate === null
    ? ''
    : trans.__('wakes in about %1', formatExactly(estimate));
}

/** What hibernation means, how far it has got, or why it was refused; '' if there is nothing to say. */
export function sleepTitle(
  { state, preferences, hibernation }: IGroup,
  trans: ITranslation
): string {
  if (state === 'hibernated') {
    return typeof hibernation?.estimate === 'number'
      ? trans.__(
          'Hibernated: it uses no GPU memory. Its next cell wakes it in about %1.',
          formatExactly(hibernation.estimate)
        )
      : trans.__('Hibernated: it uses no GPU memory. Its next cell wakes it.');
  }
  switch (hibernation?.state) {
    case 'ordered':
      return hibernation.code === null
        ? trans.__('Will hibernate as soon as it is idle.')
        : trans.__(
            'Cannot hibernate yet: %1.',
            refusalText(hibernation, trans)
          );
    case 'parking':
    case 'hibernating':
      return trans.__('Hibernating.');
    case 'refused':
      // Users know what they asked for, and a refusal does not matter where nothing is on the GPU.
      return preferences.keep ||
        ['off', 'nothing'].includes(hibernation.code ?? '')
        ? ''
        : trans.__('Not hibernated: %1.', refusalText(hibernation, trans));
    default:
      return '';
  }
}

/** Why a group has its class; null for the default. */
export function classText(group: IGroup, trans: ITranslation): string | null {
  const asked = group.preferences.priority !== 'auto';
  if (group.class === 'interactive') {
    return asked ? trans.__('interactive (set manually)') : null;
  }
  if (group.class === 'agent') {
    return asked
      ? trans.__('agent (set manually)')
      : trans.__(
          'agent: a program ran its last cell; it is interactive again when a person runs one'
        );
  }
  if (asked) {
    return trans.__('low priority (set manually)');
  }
  const cell = group.cell ?? group.last_cell;
  return cell
    ? trans.__(
        'low priority: its cell has used %1 of GPU time; the next cell is interactive again',
        formatDuration(cell.ran)
      )
    : trans.__(
        'low priority: it has been using the GPU for a long time; it becomes interactive again after a pause'
      );
}

/** What users have set for a group, other than the defaults. */
export function preferencesText(
  preferences: IGroupPreferences,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string[] {
  const texts: string[] = [];
  if (preferences.frozen) {
    texts.push(frozenText(trans));
  }
  if (preferences.on_hold) {
    texts.push(trans.__('on hold by an administrator'));
  }
  if (preferences.exclusive) {
    texts.push(trans.__('exclusive for this cell'));
  }
  if (preferences.keep) {
    texts.push(trans.__('kept on the GPU'));
  }
  if (preferences.memory > 0) {
    texts.push(
      trans.__('at most %1 of memory', formatBytes(preferences.memory, units))
    );
  }
  if (preferences.request > 0) {
    texts.push(
      trans.__('at least %1 of GPU time', formatPercent(preferences.request))
    );
  }
  if (preferences.limit > 0) {
    texts.push(
      trans.__('at most %1 of GPU time', formatPercent(preferences.limit))
    );
  }
  if (preferences.weight !== 1) {
    texts.push(trans.__('weight %1', preferences.weight));
  }
  return texts;
}

/** Where a group's memory is. */
export function memoryText(
  { resident, swapped, disk }: Pick<IMemory, 'resident' | 'swapped' | 'disk'>,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string {
  const size = (bytes: number): string => formatBytes(bytes, units);
  if (resident + swapped + disk === 0) {
    return trans.__('no GPU memory');
  }
  if (swapped + disk === 0) {
    return trans.__('all on the GPU');
  }
  if (resident + disk === 0) {
    return trans.__('all in host memory');
  }
  if (resident + swapped === 0) {
    return trans.__('all on disk');
  }
  const parts = [
    resident > 0 && onGpuText(size(resident), trans),
    swapped > 0 && hostMemoryText(size(swapped), trans),
    disk > 0 && diskText(size(disk), trans)
  ];
  return parts.filter(Boolean).join(', ');
}

/** What of a group's memory needs no copy, or no memory of its own; '' if there is none. */
export function tiersText(
  { clean, shared }: Pick<IMemory, 'clean' | 'shared'>,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string {
  const parts = [
    clean > 0 &&
      trans.__('unchanged since its last copy: %1', formatBytes(clean, units)),
    shared > 0 &&
      trans.__(
        'shared in host memory with other notebooks of the same user: %1',
        formatBytes(shared, units)
      )
  ];
  return parts.filter(Boolean).join(' · ');
}

/** The notebooks that a list does not name. */
export function othersText(count: number, trans: ITranslation): string {
  return trans._n('and %1 other', 'and %1 others', count);
}
