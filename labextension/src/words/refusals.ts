// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import type { IHibernation, ISleep } from '../core/status';

type Why = Pick<ISleep | IHibernation, 'code' | 'text'>;

/** Why one or all notebooks are not hibernated, in the words of scheduler/core/refusals.py. */
export function refusalText({ code, text }: Why, trans: ITranslation): string {
  const sentence = sentenceOf(code, trans);
  if (!sentence) {
    return text || trans.__('the scheduler reported: %1', code ?? '');
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

/** The codes for which the scheduler has more details than the sentence. */
const DETAILED = ['driver', 'helper', 'permission', 'failed', 'stuck'];

function sentenceOf(code: string | null, trans: ITranslation): string {
  switch (code) {
    case 'off':
      return trans.__(
        'hibernation is turned off, or the notebook is kept on the GPU'
      );
    case 'driver':
      return trans.__('the driver cannot checkpoint processes');
    case 'helper':
      return trans.__(
        'the hibernator, the helper process that checkpoints notebooks, is not running'
      );
    case 'permission':
      return trans.__(
        'the scheduler lacks permission to checkpoint the process; an administrator can grant it'
      );
    case 'container':
      return trans.__(
        'its process runs in a container that the scheduler cannot reach; an administrator can install the privileged hibernator'
      );
    case 'descriptors':
      return trans.__('the scheduler has no free file descriptors');
    case 'debugger':
      return trans.__('a debugger is attached to its process');
    case 'busy':
      return trans.__('its process was in the middle of a driver call');
    case 'capture':
      return trans.__('its process is capturing a CUDA graph');
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
      return trans.__('its process holds too much unevictable memory');
    case 'plain':
      return trans.__('its memory cannot be evicted with the backend plain');
    case 'failed':
      return trans.__('the driver could not checkpoint or restore its process');
    case 'stuck':
      return trans.__('its hibernation is taking longer than expected');
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
