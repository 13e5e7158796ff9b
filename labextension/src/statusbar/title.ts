// SPDX-License-Identifier: BSD-3-Clause
import { detailsOf } from '../words/details';
import { availabilityText, unsharedText } from '../words/sentences';
import type { IGroup, IStatus } from '../core/status';
import { showsBackground } from '../core/status';
import type { IWording } from '../words/short';

/** What the status bar tells who points at it; '' where its text says it all. */
export function statusTitle(
  status: IStatus,
  kernelId: string | null,
  group: IGroup | null,
  wording: IWording,
  now: number
): string {
  const { trans } = wording;
  const lines: string[] = [];
  const unavailable = availabilityText(status.availability, trans);
  if (unavailable) {
    lines.push(unavailable.title);
  }
  const unshared = status.unshared.find(
    ({ kernel_id }) => kernel_id === kernelId
  );
  if (group) {
    lines.push(
      detailsOf(group, wording, now, showsBackground(group, status.groups))
    );
  } else if (unshared && !unavailable) {
    const notebook = trans.__('This notebook');
    const { title, text } = unsharedText(notebook, unshared, trans);
    lines.push(title, text);
  }
  return lines.join('\n');
}
