// SPDX-License-Identifier: BSD-3-Clause
import { formatBound, formatBytes, formatDuration } from '../core/format';
import type { ICode, IGroup, Params } from '../core/status';
import type { ITranslation } from '../core/translation';
import { isolate, shorten, shortName, wordName } from './mentions';
import { number, text } from './params';
import type { IWording } from './short';

/** The longest name in a sentence. The row or the title has the whole name. */
const LONGEST_NAME = 36;

/** The current name of a group in the parameters; the scheduler's name can be older. */
function groupName(params: Params, key: string, wording: IWording): string {
  const { trans, names } = wording;
  const reported = params[`${key}_name`];
  const name =
    wordName(names.get(text(params, key))) ||
    (typeof reported === 'string' ? wordName(shortName(reported)) : '') ||
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

/** "x's turn ends within 3 s", or "x has the GPU" if the time is unknown or not wanted. */
function turnEnds(
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
    ? trans.__("%1's turn ends within %2", name, formatBound(left - elapsed))
    : trans.__("%1's turn is about to end", name);
}

/**
 * Why a group waits.
 *
 * @param elapsed - Seconds since the scheduler's message; null for a text without times.
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
  const left = (): string => formatBound(number(params, 'until_in') - passed);
  switch (code) {
    case 'needs_memory':
      return trans.__(
        'needs %1 more; %2',
        size('lack'),
        turnEnds(params, 'yields_in', wording, elapsed)
      );
    case 'serialised':
      return trans.__(
        'one notebook at a time (anti-thrash is on); %1',
        turnEnds(params, 'yields_in', wording, elapsed)
      );
    case 'making_room': {
      const names = victims(params);
      const text = names
        ? trans.__('making room by evicting %1 of %2', size('lack'), names)
        : trans.__('making room by evicting %1', size('lack'));
      return number(params, 'clean') > 0
        ? trans.__(
            '%1, %2 of it without a copy because it has not changed',
            text,
            size('clean')
          )
        : text;
    }
    case 'filling': {
      const names = victims(params);
      return names
        ? trans.__(
            'restoring its memory while evicting %1: %2 of %3',
            names,
            size('arrived'),
            size('footprint')
          )
        : trans.__(
            'restoring its memory: %1 of %2',
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
              'the CUDA kernel `%1` of %2 has been running for %3',
              kernel,
              name,
              formatDuration(number(params, 'kernel_for') + passed)
            )
          : trans.__(
              'the CUDA kernel `%1` of %2 is still running',
              kernel,
              name
            );
      }
      return timed
        ? trans.__(
            'waiting for %1 to finish its queued GPU work (%2 so far)',
            groupName(params, 'holder', wording),
            formatDuration(number(params, 'for') + passed)
          )
        : trans.__(
            'waiting for %1 to finish its queued GPU work',
            groupName(params, 'holder', wording)
          );
    case 'stuck':
      if (typeof params['kernel'] === 'string') {
        return trans.__(
          '%1 has not released the GPU: its CUDA kernel `%2` has been running for %3. Interrupt or restart it.',
          groupName(params, 'holder', wording),
          shorten(params['kernel'], LONGEST_NAME),
          formatDuration(number(params, 'kernel_for') + passed)
        );
      }
      return trans.__(
        '%1 has not responded for %2. It may be stopped, or its GPU work may be stuck. Interrupt or restart it.',
        groupName(params, 'holder', wording),
        formatDuration(number(params, 'for') + passed)
      );
    case 'behind':
      return trans.__(
        '%1 is ahead in the queue',
        groupName(params, 'ahead', wording)
      );
    case 'residency':
      return timed && number(params, 'until_in') - passed >= 0.5
        ? trans.__(
            "%1's memory was just restored; it can be evicted in %2",
            groupName(params, 'holder', wording),
            left()
          )
        : trans.__(
            "%1's memory was just restored",
            groupName(params, 'holder', wording)
          );
    case 'foreign_use':
      return trans.__(
        'needs %1 more; programs not managed by gpushare hold %2',
        size('lack'),
        size('foreign')
      );
    case 'crowded':
      return trans.__(
        'needs %1 more; other notebooks hold %2 of unevictable memory (CUDA contexts, shared memory). Shut one of them down or restart it.',
        size('lack'),
        size('fixed')
      );
    case 'waking':
      return trans.__('waking up from hibernation');
    case 'no_room':
      return trans.__(
        'needs %1 of free GPU memory to wake up, and more is in use than expected; trying again. No data is lost.',
        size('need')
      );
    case 'dying':
      return trans.__(
        'needs %1 more; waiting for the driver to free %2 of a process that has exited',
        size('lack'),
        size('pending_reclaim')
      );
    case 'returning':
      return trans._n(
        'needs %2 more; waiting for %1 process to reconnect to the restarted scheduler',
        'needs %2 more; waiting for %1 processes to reconnect to the restarted scheduler',
        number(params, 'clients'),
        size('lack')
      );
    case 'host_memory':
      return timed
        ? trans.__(
            'needs %1 more, but the host has too little free memory; the allocation fails within %2 unless memory is freed',
            size('lack'),
            left()
          )
        : trans.__(
            'needs %1 more, but the host has too little free memory',
            size('lack')
          );
    case 'restore_failed': {
      const attempts = number(params, 'attempts');
      if (typeof params['error'] !== 'number') {
        return trans._n(
          'restoring its memory failed once; trying again. No data is lost.',
          'restoring its memory failed %1 times; trying again. No data is lost.',
          attempts
        );
      }
      return trans._n(
        'restoring its memory failed once (CUDA error %2); trying again. No data is lost.',
        'restoring its memory failed %1 times (CUDA error %2); trying again. No data is lost.',
        attempts,
        String(params['error'])
      );
    }
    case 'frozen':
      return trans.__('frozen; unfreeze it to continue');
    case 'on_hold':
      return trans.__('on hold; only an administrator can resume it');
    case 'quota_gpus':
      return quotaText(params, wording, elapsed);
    case 'gpu_draining':
      return trans.__(
        'an administrator is draining its GPU; wait, or restart the kernel to get another GPU'
      );
    case 'kept':
      return timed
        ? trans.__(
            'needs %1 more; %2 keeps its idle memory on the GPU, for at most %3 more',
            size('lack'),
            groupName(params, 'holder', wording),
            left()
          )
        : trans.__(
            'needs %1 more; %2 keeps its idle memory on the GPU',
            size('lack'),
            groupName(params, 'holder', wording)
          );
    case 'exclusive':
      return timed
        ? trans.__(
            '%1 has the GPU to itself for one cell, for at most %2 more',
            groupName(params, 'holder', wording),
            left()
          )
        : trans.__(
            '%1 has the GPU to itself for one cell',
            groupName(params, 'holder', wording)
          );
    case 'limited':
      return timed
        ? trans.__(
            '%1 has reached the GPU time limit; more in %2',
            ownerName(params['whose'], trans),
            left()
          )
        : trans.__(
            '%1 has reached the GPU time limit',
            ownerName(params['whose'], trans)
          );
    case 'thrashing':
      return trans.__(
        'paging slowed both notebooks down when they ran side by side, so they take turns; %1',
        turnEnds(params, 'yields_in', wording, elapsed)
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

/** How many GPUs its user or team may use, and what it is waiting for. */
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
      '%1, and this notebook alone uses %2; restart it on fewer GPUs',
      quota,
      number(params, 'own')
    );
  }
  return typeof params['holder_name'] === 'string'
    ? trans.__('%1; %2', quota, turnEnds(params, 'yields_in', wording, elapsed))
    : trans.__('%1; other notebooks of the same user or team are ahead', quota);
}

/** Whose limit or entitlement it is: `user:ada`, `team:course`, or the notebook's own. */
export function ownerName(whose: unknown, trans: ITranslation): string {
  const [, kind, name = ''] =
    /^(user|team):(.*)$/.exec(typeof whose === 'string' ? whose : '') ?? [];
  switch (kind) {
    case 'user':
      return trans.__('user %1', isolate(shorten(name, LONGEST_NAME)));
    case 'team':
      return trans.__('team %1', isolate(shorten(name, LONGEST_NAME)));
    default:
      return trans.__('it');
  }
}
