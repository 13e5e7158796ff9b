// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import type { IGroup } from '../core/status';
import { isRunning } from '../core/status';
import { hasGpuText } from './reasons';

/** The state of a notebook for screen readers; the text changes only when the state does. */
export function announce(
  group: IGroup,
  name: string,
  trans: ITranslation
): string {
  if (group.state === 'hibernated') {
    return trans.__('%1 is hibernated', name);
  }
  if (group.state === 'waking') {
    return trans.__('%1 is waking up', name);
  }
  if (group.state === 'waiting') {
    return trans.__(
      '%1 is waiting for the GPU, position %2',
      name,
      group.position ?? 1
    );
  }
  return isRunning(group)
    ? hasGpuText(name, trans)
    : trans.__('%1 is not using the GPU', name);
}
