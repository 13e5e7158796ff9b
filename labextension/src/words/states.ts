// SPDX-License-Identifier: BSD-3-Clause
import {
  formatBytes,
  formatDuration,
  formatExactly,
  formatInterval,
  formatPercent
} from '../core/format';
import type {
  ICell,
  IEstimate,
  IGroup,
  ISleep,
  IWishes,
  Kind
} from '../core/status';
import { memoryOf } from '../core/status';
import type { ITranslation } from '../core/translation';
import { refusalText } from './refusals';
import type { IWording } from './short';
import { estimateOf, estimateText, frozenText, stateName } from './short';

/** What a kind is called. */
export function kindText(kind: Kind, trans: ITranslation): string {
  return {
    burst: stateName({ state: 'running' }, trans),
    wait: stateName({ state: 'waiting' }, trans),
    hibernated: stateName({ state: 'hibernated' }, trans),
    in: trans.__('memory arriving'),
    out: trans.__('memory leaving')
  }[kind];
}

/** Where a group's memory is. */
export function whereText(group: IGroup, wording: IWording): string {
  const { resident, swapped } = memoryOf(group);
  return memoryText(resident, swapped, wording);
}

/** The interval in which most such waits end: `2–9 s`. */
function intervalText(estimate: IEstimate, elapsed = 0): string {
  return formatInterval(
    Math.max(0, estimate.low - elapsed),
    Math.max(0, estimate.high - elapsed)
  );
}

/** Within which time most such waits end. */
export function intervalSentence(
  estimate: IEstimate,
  trans: ITranslation,
  elapsed = 0
): string {
  return trans.__(
    'Nine of ten such waits end in %1.',
    intervalText(estimate, elapsed)
  );
}

/** A length of waiting. */
export function waitedFor(duration: string, trans: ITranslation): string {
  return trans.__('waited %1', duration);
}

/** How long something lasts that is not over. */
export function soFarText(seconds: number, trans: ITranslation): string {
  return trans.__('%1 so far', formatExactly(seconds));
}

/** What leads to a notebook that is named. */
export function goToText(name: string, trans: ITranslation): string {
  return trans.__('Go to %1', name);
}

/**
 * For how long a group has waited, and how much longer it will: one phrase.
 *
 * `waited 10 s, about 9 s more`
 */
export function waitedText(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const waited = formatDuration(now - group.since);
  const elapsed = Math.max(0, now - group.at);
  const estimate = estimateOf(group);
  if (estimate === null) {
    return waitedFor(waited, trans);
  }
  const left = estimate.seconds - elapsed;
  return left >= 0.5
    ? trans.__('waited %1, about %2 more', waited, formatDuration(left))
    : trans.__('waited %1, %2', waited, estimateText(estimate, trans, elapsed));
}

/** How a cell fared: `waited 2.1 s, ran 0.8 s`. */
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

/** What a group that does not wait is doing, in a few words. */
export function stateText(
  group: IGroup,
  trans: ITranslation,
  now: number
): string {
  const since = formatDuration(now - (group.cell?.since ?? group.since));
  switch (group.state) {
    case 'running': {
      const state = group.cell
        ? trans.__('cell for %1', since)
        : trans.__('running for %1', since);
      if (group.yields_in === null) {
        return state;
      }
      const left = group.yields_in - (now - group.at);
      return left >= 0.5
        ? trans.__('%1 · yields within %2', state, formatDuration(left))
        : trans.__('%1 · about to yield', state);
    }
    case 'held':
      return group.cell
        ? trans.__('cell for %1 · idle lease', since)
        : trans.__('idle lease for %1', since);
    case 'yielding':
      return trans.__('finishing its last GPU work');
    case 'moving':
      return trans.__('moving its memory to the GPU');
    default:
      return group.cell
        ? trans.__('cell for %1, not using the GPU', since)
        : trans.__('for %1', since);
  }
}

/** What a group that is hibernated gives back, and how long it takes to wake it. */
export function sleepText(
  { frees, estimate }: ISleep,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string {
  const freed = trans.__('frees %1', formatBytes(frees, units));
  return estimate === null
    ? freed
    : trans.__('%1 · about %2 to wake', freed, formatExactly(estimate));
}

/** What it means that a group is hibernated, or how far it is; why it was left alone; '' where there is nothing to say. */
export function sleepTitle(
  { state, wishes, hibernation }: IGroup,
  trans: ITranslation
): string {
  if (state === 'hibernated') {
    return typeof hibernation?.estimate === 'number'
      ? trans.__(
          'Hibernated: nothing of it is on the GPU; its next cell takes about %1 to wake it.',
          formatExactly(hibernation.estimate)
        )
      : trans.__(
          'Hibernated: nothing of it is on the GPU; its next cell wakes it.'
        );
  }
  switch (hibernation?.state) {
    case 'ordered':
      return hibernation.code === null
        ? trans.__('Somebody ordered that it hibernates as soon as it is idle.')
        : trans.__(
            'It is to hibernate, and cannot yet: %1.',
            refusalText(hibernation, trans)
          );
    case 'parking':
    case 'hibernating':
      return trans.__('It is being hibernated.');
    case 'refused':
      // What people asked for, they know; and what has nothing there matters to nobody.
      return wishes.keep || ['off', 'nothing'].includes(hibernation.code ?? '')
        ? ''
        : trans.__('Not hibernated: %1.', refusalText(hibernation, trans));
    default:
      return '';
  }
}

/**
 * Why a group counts as what it does; null where that is the usual.
 *
 * What is asked is what people see of it; what it does is what it is by itself.
 */
export function classText(group: IGroup, trans: ITranslation): string | null {
  const asked = group.wishes.priority !== 'auto';
  if (group.class === 'interactive') {
    return asked ? trans.__('interactive, as somebody asked') : null;
  }
  if (asked) {
    return trans.__('background, as somebody asked');
  }
  const cell = group.cell ?? group.last_cell;
  return cell
    ? trans.__(
        'background: its cell has had %1 of GPU time; the next cell is interactive again',
        formatDuration(cell.ran)
      )
    : trans.__(
        'background: it has used the GPU for long; after a pause it is interactive again'
      );
}

/** What people asked for a group, other than the usual. */
export function wishesText(
  wishes: IWishes,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string[] {
  const texts: string[] = [];
  if (wishes.frozen) {
    texts.push(frozenText(trans));
  }
  if (wishes.held) {
    texts.push(trans.__('on hold by an administrator'));
  }
  if (wishes.exclusive) {
    texts.push(trans.__('exclusive for this cell'));
  }
  if (wishes.keep) {
    texts.push(trans.__('kept on the GPU'));
  }
  if (wishes.memory > 0) {
    texts.push(trans.__('at most %1', formatBytes(wishes.memory, units)));
  }
  if (wishes.request > 0) {
    texts.push(trans.__('request %1', formatPercent(wishes.request)));
  }
  if (wishes.limit > 0) {
    texts.push(trans.__('limit %1', formatPercent(wishes.limit)));
  }
  if (wishes.weight !== 1) {
    texts.push(trans.__('weight %1', wishes.weight));
  }
  return texts;
}

/** Where a group's memory is. */
export function memoryText(
  resident: number,
  swapped: number,
  { trans, units }: Pick<IWording, 'trans' | 'units'>
): string {
  if (resident + swapped === 0) {
    return trans.__('no memory');
  }
  if (swapped === 0) {
    return trans.__('all resident');
  }
  if (resident === 0) {
    return trans.__('all in host memory');
  }
  return trans.__(
    '%1 resident, %2 in host memory',
    formatBytes(resident, units),
    formatBytes(swapped, units)
  );
}

/** Those that are not named. */
export function othersText(count: number, trans: ITranslation): string {
  return trans._n('and %1 other', 'and %1 others', count);
}
