// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes, formatDuration, formatPercent } from '../core/format';
import type { ICode, Params } from '../core/status';
import { isolate, shorten, shortName, wordName } from './mentions';
import { ownerName } from './reasons';
import type { IWording } from './short';
import { othersText } from './states';

/** Number of groups ahead that are named; the others are counted. */
const MOST = 3;

const LONGEST_NAME = 36;

/** A group that is ahead of another one, and the rule that puts it there. */
interface IBefore extends ICode {
  group: string;
  name: string;
}

/**
 * Explain which rule puts which groups ahead of a group, what must happen for it to be next, and
 * what limits it while it runs; a line for each. docs/reference/control.md describes the answer.
 *
 * @param answer - The server's answer. Answers without an explanation give an empty text.
 */
export function explanationText(answer: unknown, wording: IWording): string {
  const { trans } = wording;
  const found = memberOf(
    memberOf(memberOf(answer, 'explanation'), 'groups'),
    0
  );
  const members = memberOf(found, 'before');
  const before = Array.isArray(members) ? members.filter(isBefore) : [];
  const lines = before.slice(0, MOST).map(one => ruleText(one, wording));
  if (before.length > MOST) {
    lines.push(othersText(before.length - MOST, trans));
  }
  const [next, pace] = [memberOf(found, 'next'), memberOf(found, 'pace')];
  if (isCode(next)) {
    lines.push(nextText(next, before, wording));
  }
  const moved = memberOf(found, 'moved');
  if (isCode(moved)) {
    lines.push(movedText(moved, wording));
  }
  if (isCode(pace)) {
    lines.push(paceText(pace, wording));
  }
  return lines.filter(line => line).join('\n');
}

function memberOf(value: unknown, key: string | number): unknown {
  return typeof value === 'object' && value !== null
    ? (value as Record<string | number, unknown>)[key]
    : undefined;
}

function isCode(value: unknown): value is ICode {
  const params = memberOf(value, 'params');
  return (
    typeof memberOf(value, 'code') === 'string' &&
    typeof params === 'object' &&
    params !== null
  );
}

function isBefore(value: unknown): value is IBefore {
  return (
    isCode(value) &&
    typeof memberOf(value, 'group') === 'string' &&
    typeof memberOf(value, 'name') === 'string'
  );
}

function nameOf({ group, name }: IBefore, { names }: IWording): string {
  return isolate(
    shorten(wordName(names.get(group) ?? shortName(name)), LONGEST_NAME)
  );
}

function number(params: Params, key: string): number {
  const value = Number(params[key]);
  return Number.isFinite(value) ? value : 0;
}

/** How much of the last eviction needed no copy, and why. */
function movedText({ params }: ICode, { trans, units }: IWording): string {
  const size = (key: string): string => formatBytes(number(params, key), units);
  const reasons = [
    number(params, 'clean') > 0 &&
      trans.__('%1 had not changed since the last copy', size('clean')),
    number(params, 'zero') > 0 &&
      trans.__('%1 contained only zeros', size('zero')),
    number(params, 'shared') > 0 &&
      trans.__(
        '%1 was already in host memory for another notebook of the same user',
        size('shared')
      )
  ].filter(Boolean);
  return reasons.length > 0
    ? trans.__(
        'the last eviction moved %1 and copied %2: %3',
        size('bytes'),
        size('copied'),
        reasons.join(', ')
      )
    : trans.__(
        'the last eviction copied all %1, because it had changed',
        size('bytes')
      );
}

/** The text for a rule. Each rule is one of the policies' sort keys. */
function ruleText(before: IBefore, wording: IWording): string {
  const { code, params } = before;
  const { trans } = wording;
  const other = nameOf(before, wording);
  const seconds = (key: string): string => formatDuration(number(params, key));
  switch (code) {
    case 'came':
      return trans.__(
        '%1 is ahead: it has been waiting %2 longer',
        other,
        formatDuration(number(params, 'own') - number(params, 'theirs'))
      );
    case 'number':
      return trans.__('%1 is ahead: it arrived first', other);
    case 'made_way':
      return trans.__('%1 is ahead: it preempted this notebook', other);
    case 'people':
      return trans.__(
        "%1 is ahead: people's cells go before agents and notebooks with low priority",
        other
      );
    case 'agent_time':
      return trans.__(
        '%1 is ahead: it has had less GPU time over the last 10 min',
        other
      );
    case 'class':
      return trans.__('%1 is ahead: it has a higher priority', other);
    case 'background':
      return trans.__(
        '%1 is ahead: it is interactive, and this notebook has low priority',
        other
      );
    case 'focus':
      return trans.__("%1 is ahead: it is open in its user's browser", other);
    case 'length':
      return trans.__(
        '%1 is ahead: it is expected to need the GPU for %2, and this notebook for %3; short bursts go first',
        other,
        seconds('theirs'),
        seconds('own')
      );
    case 'user_share':
      return trans.__(
        '%1 is ahead: over the last 10 s, %2 used %3 of the GPU and %4 used %5',
        other,
        ownerName(params['their_whose'], trans),
        formatPercent(number(params, 'their_used')),
        ownerName(params['whose'], trans),
        formatPercent(number(params, 'used'))
      );
    case 'turn':
      return trans.__(
        '%1 is ahead: it belongs to a user whose notebooks last ran longer ago',
        other
      );
    case 'share':
      return trans.__(
        '%1 is ahead: it has had less GPU time over the last 10 s, relative to its entitlement and weight',
        other
      );
    case 'request':
      return trans.__(
        '%1 is ahead: it has had less than its guaranteed GPU time',
        other
      );
    case 'use':
      return trans.__(
        '%1 is ahead: it has had less GPU time over the last 10 s',
        other
      );
    case 'weight':
      return trans.__('%1 is ahead: it has a greater weight', other);
    case 'retry':
      return trans.__(
        '%1 is ahead: it keeps its place in the queue, because there was no room for it before',
        other
      );
    case 'growth':
      return trans.__(
        '%1 is ahead: it is in the middle of an allocation',
        other
      );
    default:
      return trans.__('%1 is ahead because of the rule "%2"', other, code);
  }
}

/** What must happen for the group to be next; '' if the reason says it. */
function nextText(
  { code }: ICode,
  before: readonly IBefore[],
  wording: IWording
): string {
  const { trans } = wording;
  const first = before[0];
  if (!first) {
    return code === 'room' ? trans.__('No notebook is ahead of it.') : '';
  }
  const name = nameOf(first, wording);
  switch (code) {
    case 'interactive':
      return trans.__('If it were interactive, it would go ahead of %1.', name);
    case 'focus':
      return trans.__(
        'If it were open in the browser instead of %1, it would be ahead.',
        name
      );
    case 'use':
      return trans.__(
        'It will go ahead of %1 once %1 has had more GPU time.',
        name
      );
    default:
      return '';
  }
}

/** What limits a running group. */
function paceText({ code, params }: ICode, { trans }: IWording): string {
  const names = params['names'];
  const others = (Array.isArray(names) ? names : [])
    .filter((name): name is string => typeof name === 'string')
    .map(name => isolate(shorten(wordName(shortName(name)), LONGEST_NAME)))
    .join(', ');
  switch (code) {
    case 'paused':
      return others
        ? trans.__('Paused while %1 is running.', others)
        : trans.__('Paused until other notebooks have had their GPU time.');
    case 'bounded':
      return others ? trans.__('Throttled, because %1 is in use.', others) : '';
    case 'share':
      return trans.__(
        'Limited to %1 of GPU time.',
        formatPercent(number(params, 'share'))
      );
    default:
      return '';
  }
}
