// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import { formatBytes } from '../core/format';
import type { ICode } from '../core/status';
import { text } from './params';

/** A notice about a group or about the machine. */
export function noticeText(
  name: string,
  { code, params }: ICode,
  trans: ITranslation
): string {
  switch (code) {
    case 'started_without_interposer':
      return trans.__(
        '%1 uses the GPU without taking turns, because its kernel failed to start with GPU sharing. Restart the kernel to try again.',
        name
      );
    case 'policy_failed':
      return trans.__(
        'The policy "%1" failed and was replaced by "%2": %3',
        text(params, 'policy'),
        text(params, 'instead'),
        text(params, 'error')
      );
    case 'stuck':
      return trans.__(
        '%1 was asked to release the GPU and has not responded. Other notebooks continue without it. Interrupt or restart it.',
        name
      );
    case 'hibernation_stuck':
      return params['step'] === 'restore'
        ? trans.__(
            '%1 is taking longer than expected to wake. It will continue in the background.',
            name
          )
        : trans.__(
            '%1 is taking longer than expected to hibernate. It will continue in the background.',
            name
          );
    case 'host_full':
      return trans.__(
        'Host memory is full: evicted data takes %1 of %2. No more GPU memory can be evicted, so waits are longer and allocations can fail. Shut down notebooks that you no longer need.',
        formatBytes(Number(params['swapped']) || 0, 'binary'),
        formatBytes(Number(params['budget']) || 0, 'binary')
      );
    case 'disk_failed':
      return trans.__(
        'No more data goes to the disk: %1. No data is lost.',
        text(params, 'fault')
      );
    case 'maintenance':
      return trans.__('Maintenance: %1', text(params, 'text'));
    case 'underreported':
      return trans.__(
        'A process owned by %1 is using %2 of GPU memory that gpushare cannot account for',
        // The owner is not shown to other users.
        text(params, 'user') || trans.__('another user'),
        formatBytes(Number(params['bytes']) || 0, 'binary')
      );
    case 'reservation_lapsed':
      return params['why'] === 'lapsed'
        ? trans.__(
            '%1 did not use its reservation of the GPU in time. Reserve again.',
            name
          )
        : trans.__(
            '%1 lost its reservation of the GPU, because its lease ended or it could not be woken. Reserve again.',
            name
          );
    case 'second_kernel':
      return trans.__(
        '%1 has two kernels, %2 and %3. Each has its own variables and GPU memory. Shut down the kernel that you do not use.',
        text(params, 'path') || name,
        text(params, 'first').slice(0, 8),
        text(params, 'second').slice(0, 8)
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
