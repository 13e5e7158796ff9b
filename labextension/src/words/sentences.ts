// SPDX-License-Identifier: BSD-3-Clause
/** Whole sentences: loaded with the first that is said, and not with every page. */
import type { TranslationBundle } from '@jupyterlab/translation';

import { aloneText } from './refusals';
import {
  formatBytes,
  formatDuration,
  formatExactly,
  formatInterval,
  formatPercent
} from '../core/format';
import type {
  ICell,
  ICode,
  IEstimate,
  IGroup,
  ISleep,
  IUnshared,
  IWishes,
  Params
} from '../core/status';
import type { IWording } from './short';
import {
  estimateOf,
  estimateText,
  isolate,
  shorten,
  shortName,
  wordName
} from './short';

/** A statement, and what to do about it. */
export interface IExplanation {
  title: string;
  text: string;
  /** Something to type, shown as code. */
  command?: string;
}

/** The longest name in a sentence: it is whole where the row or the title has it. */
const LONGEST_NAME = 36;

function number(params: Params, key: string): number {
  const value = Number(params[key]);
  return Number.isFinite(value) ? value : 0;
}

/** A member that is a text, or ''. */
export function text(params: Params, key: string): string {
  const value = params[key];
  return typeof value === 'string' || typeof value === 'number'
    ? String(value)
    : '';
}

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
    return trans.__('%1 has the GPU', name);
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
export function ownerName(whose: unknown, trans: TranslationBundle): string {
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

/** The interval in which most such waits end: `2–9 s`. */
export function intervalText(estimate: IEstimate, elapsed = 0): string {
  return formatInterval(
    Math.max(0, estimate.low - elapsed),
    Math.max(0, estimate.high - elapsed)
  );
}

/**
 * For how long a group has waited, and how much longer it will: one phrase.
 *
 * `waited 10 s, about 9 s more`
 */
export function waitedText(
  group: IGroup,
  trans: TranslationBundle,
  now: number
): string {
  const waited = formatDuration(now - group.since);
  const elapsed = Math.max(0, now - group.at);
  const estimate = estimateOf(group);
  if (estimate === null) {
    return trans.__('waited %1', waited);
  }
  const left = estimate.seconds - elapsed;
  return left >= 0.5
    ? trans.__('waited %1, about %2 more', waited, formatDuration(left))
    : trans.__('waited %1, %2', waited, estimateText(estimate, trans, elapsed));
}

/** How a cell fared: `waited 2.1 s, ran 0.8 s`. */
export function cellText(
  { waited, ran }: Pick<ICell, 'waited' | 'ran'>,
  trans: TranslationBundle
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
  trans: TranslationBundle,
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
  trans: TranslationBundle
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
            aloneText(hibernation, trans)
          );
    case 'parking':
    case 'hibernating':
      return trans.__('It is being hibernated.');
    case 'refused':
      // What people asked for, they know; and what has nothing there matters to nobody.
      return wishes.keep || ['off', 'nothing'].includes(hibernation.code ?? '')
        ? ''
        : trans.__('Not hibernated: %1.', aloneText(hibernation, trans));
    default:
      return '';
  }
}

/**
 * Why a group counts as what it does; null where that is the usual.
 *
 * What is asked is what people see of it; what it does is what it is by itself.
 */
export function classText(
  group: IGroup,
  trans: TranslationBundle
): string | null {
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
    texts.push(trans.__('frozen'));
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

/** Why a kernel of this server does not share the GPU, and what to do about it. */
export function unsharedText(
  name: string,
  { code, params }: Pick<IUnshared, 'code' | 'params'>,
  trans: TranslationBundle
): IExplanation {
  const title = trans.__('%1 does not share the GPU', name);
  switch (code) {
    case 'other_provisioner':
      return {
        title,
        text: trans.__(
          'Its kernel is started by the provisioner "%1", which its kernel specification names. Choose a kernel that does not.',
          text(params, 'provisioner')
        )
      };
    case 'opted_out':
      return {
        title,
        text: trans.__(
          'Its kernel was told not to: by "gpushare": {"enabled": false} in the kernelspec\'s metadata, by GpuShareProvisioner.enabled = False, or by GPUSHARE_DISABLE=1. Remove that, and restart the kernel.'
        )
      };
    case 'started_without_interposer':
      return {
        title,
        text: trans.__(
          'Its kernel did not start with GPU sharing, so it was started without. Restart the kernel to try again; what the server logs says why it failed.'
        )
      };
    case 'started_before':
      return {
        title,
        text: trans.__(
          'Its kernel was there before GPU sharing was. Restart the kernel.'
        )
      };
    default:
      return { title, text: trans.__('The server says: %1', code) };
  }
}

/** Why nothing is shared, or is shared only in part; null if all is well. */
export function availabilityText(
  { code, params }: ICode,
  trans: TranslationBundle
): IExplanation | null {
  switch (code) {
    case 'ok':
      return null;
    case 'no_driver':
      return {
        title: trans.__('No NVIDIA driver was found'),
        text: trans.__(
          'There is no GPU to share on this server. Install the NVIDIA driver and start Jupyter again, or try a simulated GPU:'
        ),
        command: 'GPUSHARE_SIM=1 jupyter lab'
      };
    case 'not_installed':
      return {
        title: trans.__('The driver cannot be used'),
        text: text(params, 'error')
      };
    case 'bad_configuration':
      return {
        title: trans.__('The configuration has a mistake'),
        text: trans.__(
          '%1. Correct it and start Jupyter again.',
          text(params, 'error')
        )
      };
    case 'disabled':
      return {
        title: trans.__('GPU sharing is switched off'),
        text: trans.__(
          'Notebooks use the GPU without taking turns. To share it, remove this line from the configuration of the Jupyter server:'
        ),
        command: 'c.GpuShare.enabled = False'
      };
    case 'starting':
      return {
        title: trans.__('Starting'),
        text: trans.__('The scheduler is being started.')
      };
    case 'not_started':
      return {
        title: trans.__('GPU sharing did not start'),
        text: trans.__(
          '%1. Correct this and start Jupyter again. To check the installation, run:',
          text(params, 'error')
        ),
        command: 'gpushare doctor'
      };
    case 'scheduler_unreachable':
      return {
        title: trans.__('The scheduler does not answer'),
        text: trans.__(
          '%1. Notebooks go on without taking turns; the server keeps trying. To see what is wrong, run:',
          text(params, 'error') ||
            trans.__('Nobody answers at %1', text(params, 'socket'))
        ),
        command: 'gpushare doctor'
      };
    case 'remote_kernels':
      return {
        title: trans.__('Kernels run on another machine'),
        text: trans.__(
          'This server starts its kernels through the gateway %1. Install jupyter-gpushare there.',
          text(params, 'url')
        )
      };
    case 'provisioner_not_default':
      return {
        title: trans.__('Kernels of this server do not share the GPU'),
        text: trans.__(
          'They are started by the provisioner "%1", which was chosen in the configuration. To share the GPU, choose this one:',
          text(params, 'provisioner')
        ),
        command:
          'c.KernelProvisionerFactory.default_provisioner_name = "gpushare"'
      };
    case 'server_extension_missing':
      return {
        title: trans.__('The server part is not running'),
        text: trans.__(
          'Install jupyter-gpushare in the environment of the Jupyter server, enable it, and start the server again:'
        ),
        command: 'jupyter server extension enable jupyter_gpushare'
      };
    case 'forbidden':
      return {
        title: trans.__('You may not see the GPU'),
        text: trans.__(
          'This server does not let you read its state. Ask its administrator for the permission to read "gpushare".'
        )
      };
    case 'other_version':
      return {
        title: trans.__('The page and the server do not fit'),
        text: trans.__(
          'They are of different versions. Reload the page; if that does not help, start the Jupyter server again.'
        )
      };
    case 'server_unreachable':
      return {
        title: trans.__('The Jupyter server does not answer'),
        text: trans.__('What you see here may be old; the panel keeps trying.')
      };
    default:
      return {
        title: trans.__('The GPU is not shared'),
        text: text(params, 'error') || trans.__('The server says: %1', code)
      };
  }
}
