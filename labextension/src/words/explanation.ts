// SPDX-License-Identifier: BSD-3-Clause
import { formatDuration, formatPercent } from '../core/format';
import type { ICode, Params } from '../core/status';
import { isolate, shorten, shortName, wordName } from './mentions';
import { ownerName } from './reasons';
import type { IWording } from './short';
import { othersText } from './states';

/** Those before a group that are named; the others are counted. */
const MOST = 3;

const LONGEST_NAME = 36;

/** One that comes before another, and by which rule. */
interface IBefore extends ICode {
  group: string;
  name: string;
}

/**
 * Which rule put whom before a group, what it would take to be next, and what holds it
 * back while it runs: a line for each. docs/reference/control.md has what the scheduler says.
 *
 * @param answer - What the server answered; anything else than an explanation is none.
 */
export function explanationText(answer: unknown, wording: IWording): string {
  const { trans } = wording;
  const found = memberOf(
    memberOf(memberOf(answer, 'explanation'), 'groups'),
    0
  );
  const said = memberOf(found, 'before');
  const before = Array.isArray(said) ? said.filter(isBefore) : [];
  const lines = before.slice(0, MOST).map(one => ruleText(one, wording));
  if (before.length > MOST) {
    lines.push(othersText(before.length - MOST, trans));
  }
  const [next, pace] = [memberOf(found, 'next'), memberOf(found, 'pace')];
  if (isCode(next)) {
    lines.push(nextText(next, before, wording));
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

/** The rules are the parts of what the policies sort by. */
function ruleText(before: IBefore, wording: IWording): string {
  const { code, params } = before;
  const { trans } = wording;
  const other = nameOf(before, wording);
  const seconds = (key: string): string => formatDuration(number(params, key));
  switch (code) {
    case 'came':
    case 'number':
      return trans.__('%1 comes first: it has waited for longer', other);
    case 'made_way':
      return trans.__('%1 comes first: this one has made way for it', other);
    case 'background':
    case 'class':
      return trans.__(
        '%1 comes first: it is interactive, this one is in the background',
        other
      );
    case 'focus':
      return trans.__(
        '%1 comes first: it is the notebook that somebody works in',
        other
      );
    case 'length':
      return trans.__(
        '%1 comes first: it is expected to need %2, moving included, this one %3',
        other,
        seconds('theirs'),
        seconds('own')
      );
    case 'user_share':
      return trans.__(
        '%1 comes first: %2 has had %3 of the GPU lately, %4 has had %5',
        other,
        ownerName(params['their_whose'], trans),
        formatPercent(number(params, 'their_used')),
        ownerName(params['whose'], trans),
        formatPercent(number(params, 'used'))
      );
    case 'turn':
      return trans.__(
        '%1 comes first: it is the turn of %2',
        other,
        ownerName(params['their_whose'], trans)
      );
    case 'share':
      return trans.__(
        '%1 comes first: it has had less of what it is entitled to',
        other
      );
    case 'request':
      return trans.__(
        '%1 comes first: it has had less than its request',
        other
      );
    case 'use':
      return trans.__('%1 comes first: it has used the GPU less', other);
    case 'weight':
      return trans.__('%1 comes first: its weight is greater', other);
    case 'retry':
      return trans.__('%1 comes first: it is back at its place', other);
    case 'growth':
      return trans.__(
        '%1 comes first: it is in the middle of an allocation',
        other
      );
    default:
      return trans.__('%1 comes first, by the rule "%2"', other, code);
  }
}

/** What it would take to be next; '' where the reason says it. */
function nextText(
  { code }: ICode,
  before: readonly IBefore[],
  wording: IWording
): string {
  const { trans } = wording;
  const first = before[0];
  if (!first) {
    return code === 'room' ? trans.__('Nobody comes before it.') : '';
  }
  const name = nameOf(first, wording);
  switch (code) {
    case 'interactive':
      return trans.__('As interactive, it would come before %1.', name);
    case 'focus':
      return trans.__(
        'It comes before %1 while somebody works in it instead.',
        name
      );
    case 'use':
      return trans.__('It comes before %1 when that has had more.', name);
    default:
      return '';
  }
}

/** What holds one back that runs. */
function paceText({ code, params }: ICode, { trans }: IWording): string {
  const said = params['names'];
  const others = (Array.isArray(said) ? said : [])
    .filter((name): name is string => typeof name === 'string')
    .map(name => isolate(shorten(wordName(shortName(name)), LONGEST_NAME)))
    .join(', ');
  switch (code) {
    case 'paused':
      return others
        ? trans.__('It pauses for the work of %1.', others)
        : trans.__('It pauses until others have had their share.');
    case 'bounded':
      return others
        ? trans.__('It goes in small steps, for somebody works in %1.', others)
        : '';
    case 'share':
      return trans.__(
        'It has at most %1 of the time.',
        formatPercent(number(params, 'share'))
      );
    default:
      return '';
  }
}
