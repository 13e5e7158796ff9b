// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes } from '../core/format';
import type { IGroup, IStatus } from '../core/status';
import {
  isRunning,
  isUnavailable,
  isUnshared,
  isWaiting,
  memoryOf
} from '../core/status';
import type { IWording } from './short';
import {
  frozenText,
  gpuText,
  linkText,
  onGpuText,
  stateName,
  unsharedName,
  waitText
} from './short';

/**
 * The state of the active notebook, or of the GPUs if it has not used them.
 *
 * @param memory - Whether to include the memory on the GPU.
 */
export function statusText(
  status: IStatus,
  kernelId: string | null,
  group: IGroup | null,
  wording: IWording,
  now: number,
  memory: boolean
): string {
  const { trans, units } = wording;
  if (isUnavailable(status) && !group) {
    return gpuText(linkText(status.availability, trans).text, trans);
  }
  if (isUnshared(status, kernelId) && !group) {
    return unsharedName(trans);
  }
  const resident = (bytes: number): string =>
    onGpuText(formatBytes(bytes, units), trans);
  const parts: string[] = [];
  if (group) {
    const bytes = memoryOf(group).resident;
    if (group.preferences.frozen) {
      parts.push(frozenText(trans));
    } else if (group.state === 'waking') {
      parts.push(waitText(group, trans, now));
    } else if (group.state === 'waiting') {
      parts.push(trans.__('waiting (%1)', waitText(group, trans, now)));
    } else {
      parts.push(stateName(group, trans));
    }
    if (memory && bytes > 0 && !isRunning(group) && !isWaiting(group)) {
      parts.push(resident(bytes));
    }
  } else {
    const running = status.groups.filter(isRunning).length;
    const waiting = status.groups.filter(isWaiting).length;
    const bytes = status.groups.reduce(
      (sum, group) => sum + memoryOf(group).resident,
      0
    );
    if (running > 0) {
      parts.push(trans._n('%1 running', '%1 running', running));
    }
    if (waiting > 0) {
      parts.push(trans._n('%1 waiting', '%1 waiting', waiting));
    }
    if (parts.length === 0) {
      parts.push(stateName({ state: 'idle' }, trans));
    }
    if (memory && bytes > 0) {
      parts.push(resident(bytes));
    }
  }
  return gpuText(parts.join(trans.__(', ')), trans);
}
