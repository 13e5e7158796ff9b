// SPDX-License-Identifier: BSD-3-Clause
import type { ITranslation } from '../core/translation';

import { formatDuration } from '../core/format';
import type { IHibernation, ISettings } from '../core/status';
import { cannotText } from './refusals';

/** The default policy, which is not mentioned. */
const USUAL = 'burst';

/** How the GPU is shared, in a few words. */
export function modeText(
  { anti_thrash, quantum, policy }: ISettings,
  trans: ITranslation
): string {
  const mode = {
    auto: trans.__('automatic'),
    on: trans.__('one at a time'),
    off: trans.__('side by side')
  }[anti_thrash];
  const parts = [mode];
  if (quantum !== 'auto') {
    parts.push(formatDuration(quantum));
  }
  if (policy !== USUAL) {
    parts.push(trans.__('policy %1', policy));
  }
  return parts.join(' · ');
}

/** When idle notebooks hibernate, or why they do not; '' if the scheduler does not report it. */
export function idlenessText(
  { hibernate_after }: ISettings,
  hibernation: IHibernation | null,
  trans: ITranslation
): string {
  if (hibernation?.able === false) {
    return cannotText(hibernation, trans);
  }
  switch (hibernate_after) {
    case undefined:
      return '';
    case null:
      return trans.__('Idle notebooks do not hibernate.');
    default:
      return trans.__(
        'Notebooks hibernate after being idle for %1.',
        formatDuration(hibernate_after)
      );
  }
}
