// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes, formatDuration } from '../core/format';
import type { ICode, IGroup, Params } from '../core/status';
import type { ITranslation } from '../core/translation';
import { isolate, shorten, shortName, wordName } from './mentions';
import { number, text } from './params';
import type { IWording } from './short';

/** The longest name in a sentence: it is whole where the row or the title has it. */
const LONGEST_NAME = 36;

/** The group that `key` names, as it is called now; the scheduler knows older names. */
function groupName(params: Params, key: string, wording: IWording): string {
  const { trans, names } = wording;
  const said = params[`${key}_name`];
  const name =
    wordName(names.get(text(params, key))) ||
    (typeof said === 'string' ? wordName(shortName(said)) : '') ||
    trans.__('another notebook');
  return isolate(shorten(name, LONGEST_NAME));
}

/** "a, b", or nothing. */
function victims(params: Params): string {
  const names = params['victims'];
  return Array.isArray(names)
    ? names
        .filter((name): name is string => typeof name === 'string')
        .map(name => isolate(shorten(wordName(shortName(name)), LONGEST_NAME)))
        .join(', ')
    : '';
}

/** Which notebook has the GPU. */
export function hasGpuText(name: string, trans: ITranslation): string {
  return trans.__('%1 has the GPU', name);
}

/** "x yields within 3 s", or "x has the GPU" where nobody can say when, or no time is wanted. */
function yields(
  params: Params,
  key: string,
  wording: IWording,
  elapsed: number | null
): string {
  const { trans } = wording;
  const name = groupName(params, 'holder', wording);
  const left = params[key];
  if (typeof left !== 'number' || elapsed === null) {
    return hasGpuText(name, trans);
  }
  return left - elapsed >= 0.5
    ? trans.__('%1 yields within %2', name, formatDuration(left - elapsed))
    : trans.__('%1 is about to yield', name);
}

/**
 * Why a group waits.
 *
 * @param elapsed - Seconds since the scheduler said so; null: without times, for a row that has its own.
 */
export function reasonText(
  reason: ICode | null,
  wording: IWording,
  elapsed: number | null = 0
): string {
  const { trans, units } = wording;
  const { code, params } = reason ?? { code: '', params: {} };
  const size = (key: string): string => formatBytes(number(params, key), units);
  const timed = elapsed !== null;
  const passed = elapsed ?? 0;
  const left = (): string =>
    formatDuration(number(params, 'until_in') - passed);
  switch (code) {
    case 'needs_memory':
      return trans.__(
        'needs %1, lacks %2: %3',
        size('need'),
        size('lack'),
        yields(params, 'yields_in', wording, elapsed)
      );
    case 'serialised':
      return trans.__(
        'one notebook at a time: %1',
        yields(params, 'yields_in', wording, elapsed)
      );
    case 'making_room': {
      const names = victims(params);
      return names
        ? trans.__(
            'making room: moving %1 of %2 to host memory',
            size('lack'),
            names
          )
        : trans.__('making room for %1', size('lack'));
    }
    case 'filling': {
      const names = victims(params);
      return names
        ? trans.__(
            'its memory is arriving while that of %1 leaves: %2 of %3',
            names,
            size('arrived'),
            size('footprint')
          )
        : trans.__(
            'its memory is arriving: %1 of %2',
            size('arrived'),
            size('footprint')
          );
    }
    case 'draining':
      if (typeof params['kernel'] === 'string') {
        const kernel = shorten(params['kernel'], LONGEST_NAME);
        const name = groupName(params, 'holder', wording);
        return timed
          ? trans.__(
              'the kernel `%1` of %2 has been running for %3',
              kernel,
              name,
              formatDuration(number(params, 'kernel_for') + passed)
            )
          : trans.__('the kernel `%1` of %2 is still running', kernel, name);
      }
      return timed
        ? trans.__(
            '%1 is finishing its last GPU work (for %2)',
            groupName(params, 'holder', wording),
            formatDuration(number(params, 'for') + passed)
          )
        : trans.__(
            '%1 is finishing its last GPU work',
            groupName(params, 'holder', wording)
          );
    case 'stuck':
      if (typeof params['kernel'] === 'string') {
        return trans.__(
          '%1 does not give the GPU up: its kernel `%2` has been running for %3; interrupt or restart it',
          groupName(params, 'holder', wording),
          shorten(params['kernel'], LONGEST_NAME),
          formatDuration(number(params, 'kernel_for') + passed)
        );
      }
      return trans.__(
        '%1 has not answered for %2: it was stopped, or its GPU work does not end; interrupt or restart it',
        groupName(params, 'holder', wording),
        formatDuration(number(params, 'for') + passed)
      );
    case 'behind':
      return trans.__('after %1', groupName(params, 'ahead', wording));
    case 'residency':
      return trans.__(
        'its memory has only just arrived: %1',
        yields(params, 'until_in', wording, elapsed)
      );
    case 'foreign_use':
      return trans.__(
        'lacks %1: programs outside the sharing hold %2',
        size('lack'),
        size('foreign')
      );
    case 'crowded':
      return trans.__(
        'lacks %1: others hold %2 that cannot move (CUDA contexts, shared memory); shut a notebook down, or restart one that holds such memory',
        size('lack'),
        size('fixed')
      );
    case 'waking':
      return trans.__('it was hibernated, and is being woken');
    case 'dying':
      return trans.__(
        'lacks %1: memory of a process that ended is being freed',
        size('lack')
      );
    case 'returning':
      return trans._n(
        'lacks %2 until %1 process of the previous scheduler has connected again',
        'lacks %2 until %1 processes of the previous scheduler have connected again',
        number(params, 'clients'),
        size('lack')
      );
    case 'host_memory':
      return trans.__(
        'lacks %1: the host has too little free memory at the moment',
        size('lack')
      );
    case 'restore_failed': {
      const attempts = number(params, 'attempts');
      if (typeof params['error'] !== 'number') {
        return trans._n(
          'its memory could not be moved back to the GPU in %1 attempt; trying again, nothing is lost',
          'its memory could not be moved back to the GPU in %1 attempts; trying again, nothing is lost',
          attempts
        );
      }
      return trans._n(
        'its memory could not be moved back to the GPU in %1 attempt (CUDA error %2); trying again, nothing is lost',
        'its memory could not be moved back to the GPU in %1 attempts (CUDA error %2); trying again, nothing is lost',
        attempts,
        String(params['error'])
      );
    }
    case 'frozen':
      return trans.__('frozen until somebody unfreezes it');
    case 'on_hold':
      return trans.__(
        'an administrator took the GPU from it, and has to let it go on'
      );
    case 'quota_gpus':
      return quotaText(params, wording, elapsed);
    case 'gpu_draining':
      return trans.__(
        'an administrator wants its GPU empty: wait, or restart the kernel to get another GPU'
      );
    case 'kept':
      return timed
        ? trans.__(
            'lacks %1: the memory of %2 is kept on the GPU, for at most %3 more',
            size('lack'),
            groupName(params, 'holder', wording),
            left()
          )
        : trans.__(
            'lacks %1: the memory of %2 is kept on the GPU',
            size('lack'),
            groupName(params, 'holder', wording)
          );
    case 'exclusive':
      return timed
        ? trans.__(
            '%1 has the GPU for a whole cell, for at most %2 more',
            groupName(params, 'holder', wording),
            left()
          )
        : trans.__(
            '%1 has the GPU for a whole cell',
            groupName(params, 'holder', wording)
          );
    case 'limited':
      return timed
        ? trans.__(
            '%1 had its share of the GPU; more in %2',
            ownerName(params['whose'], trans),
            left()
          )
        : trans.__(
            '%1 had its share of the GPU',
            ownerName(params['whose'], trans)
          );
    case 'thrashing':
      return trans.__(
        'side by side both were slowed by paging, so they take turns: %1',
        yields(params, 'yields_in', wording, elapsed)
      );
    default:
      return trans.__('waiting for the GPU');
  }
}

/** Why a group waits, or is not awake yet. */
export function whyText(
  { state, reason }: IGroup,
  wording: IWording,
  elapsed: number | null = 0
): string {
  const waking = state === 'waking' ? { code: 'waking', params: {} } : null;
  return reasonText(reason ?? waking, wording, elapsed);
}

/** How many GPUs its user or team may use, and what has to happen. */
function quotaText(
  params: Params,
  wording: IWording,
  elapsed: number | null
): string {
  const { trans } = wording;
  const most = number(params, 'gpus');
  const quota = trans._n(
    '%2 may use %1 GPU at once',
    '%2 may use %1 GPUs at once',
    most,
    ownerName(params['whose'], trans)
  );
  if (number(params, 'own') > most) {
    return trans.__(
      '%1, and it uses %2 by itself: restart it on fewer',
      quota,
      number(params, 'own')
    );
  }
  return typeof params['holder_name'] === 'string'
    ? trans.__('%1: %2', quota, yields(params, 'yields_in', wording, elapsed))
    : trans.__('%1: others of the same come first', quota);
}

/** Whose share it is: `user:ada`, `team:course`, or the notebook's own. */
export function ownerName(whose: unknown, trans: ITranslation): string {
  const [, kind, name = ''] =
    /^(user|team):(.*)$/.exec(typeof whose === 'string' ? whose : '') ?? [];
  switch (kind) {
    case 'user':
      return trans.__('the user %1', isolate(shorten(name, LONGEST_NAME)));
    case 'team':
      return trans.__('the team %1', isolate(shorten(name, LONGEST_NAME)));
    default:
      return trans.__('it');
  }
}
