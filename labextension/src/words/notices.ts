// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import { formatBytes } from '../core/format';
import type { ICode } from '../core/status';
import { text } from './params';

/** Something that people should know about a group. */
export function noticeText(
  name: string,
  { code, params }: ICode,
  trans: ITranslation
): string {
  switch (code) {
    case 'started_without_interposer':
      return trans.__(
        '%1 uses the GPU without taking turns: its kernel did not start with GPU sharing. Restart the kernel to try again.',
        name
      );
    case 'policy_failed':
      return trans.__(
        'The policy "%1" failed, and "%2" took over: %3',
        text(params, 'policy'),
        text(params, 'instead'),
        text(params, 'error')
      );
    case 'stuck':
      return trans.__(
        '%1 was told to give the GPU up and does not answer. Others are served around it; interrupt or restart it.',
        name
      );
    case 'hibernation_stuck':
      return params['step'] === 'restore'
        ? trans.__('Waking %1 does not end; it goes on by itself.', name)
        : trans.__('Hibernating %1 does not end; it goes on by itself.', name);
    case 'host_full':
      return trans.__(
        'Host memory is full: swapped data takes %1 of %2. Memory of other notebooks cannot leave the GPU, so notebooks wait longer and allocations can fail. Shut down notebooks that you no longer need.',
        formatBytes(Number(params['swapped']) || 0, 'binary'),
        formatBytes(Number(params['budget']) || 0, 'binary')
      );
    case 'maintenance':
      return trans.__('Maintenance: %1', text(params, 'text'));
    case 'underreported':
      return trans.__(
        'A process of %1 holds %2 of GPU memory that it does not state',
        // Others are not told whose it is.
        text(params, 'user') || trans.__('another user'),
        formatBytes(Number(params['bytes']) || 0, 'binary')
      );
    case 'recording_ended':
      return trans.__('The recording to %1 ended.', text(params, 'file'));
    default:
      return (
        text(params, 'text') ||
        text(params, 'error') ||
        trans.__('%1: %2', name, code)
      );
  }
}
