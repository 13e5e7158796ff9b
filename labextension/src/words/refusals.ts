// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import type { IHibernation, ISleep } from '../core/status';

type Why = Pick<ISleep | IHibernation, 'code' | 'text'>;

/** Why a notebook, or every one, is not hibernated; the words are those of scheduler/core/refusals.py. */
export function refusalText({ code, text }: Why, trans: ITranslation): string {
  const sentence = sentenceOf(code, trans);
  if (!sentence) {
    return text || trans.__('the scheduler says: %1', code ?? '');
  }
  return DETAILED.includes(code ?? '') && text && text !== sentence
    ? trans.__('%1: %2', sentence, text)
    : sentence;
}

/** That no notebook can be hibernated, and why. */
export function cannotText(why: Why, trans: ITranslation): string {
  return trans.__(
    'Notebooks cannot be hibernated: %1.',
    refusalText(why, trans)
  );
}

/** Of these the scheduler says more than the sentence. */
const DETAILED = ['driver', 'helper', 'permission', 'failed', 'stuck'];

function sentenceOf(code: string | null, trans: ITranslation): string {
  switch (code) {
    case 'off':
      return trans.__(
        'hibernation is switched off, or the notebook keeps its place on the GPU'
      );
    case 'driver':
      return trans.__('the driver cannot checkpoint processes');
    case 'helper':
      return trans.__(
        'the hibernator, which asks the driver to checkpoint processes, does not run'
      );
    case 'permission':
      return trans.__(
        'the scheduler has no permission to reach into the process; its administrator can give it that'
      );
    case 'container':
      return trans.__('its process is in another container than the scheduler');
    case 'debugger':
      return trans.__('a debugger is attached to its process');
    case 'busy':
      return trans.__('its process was at work in the driver');
    case 'capture':
      return trans.__('its process captures a CUDA graph');
    case 'gpus':
      return trans.__('its process uses several GPUs');
    case 'nccl':
      return trans.__(
        'its process may have NCCL communicators, which the driver cannot checkpoint'
      );
    case 'ipc':
      return trans.__(
        'its process shares GPU memory with other processes, which the driver cannot checkpoint'
      );
    case 'managed':
      return trans.__(
        'its process has managed memory, which the driver cannot checkpoint'
      );
    case 'unevictable':
      return trans.__(
        'its process holds much memory that cannot be moved out first'
      );
    case 'plain':
      return trans.__('its memory is not moved out by us first');
    case 'failed':
      return trans.__('the driver failed at it');
    case 'stuck':
      return trans.__('its hibernation does not end');
    default:
      return '';
  }
}

/** What does not change while a process lives. */
const LASTING = [
  ...['driver', 'helper', 'permission', 'container'],
  ...['gpus', 'nccl', 'ipc', 'managed', 'plain']
];

/** Whether it makes no sense to try again what was refused. */
export function isFinal({ code }: Pick<ISleep, 'code'>): boolean {
  return code !== null && LASTING.includes(code);
}
