// SPDX-License-Identifier: BSD-3-Clause
import {
  classText,
  intervalText,
  memoryText,
  sleepTitle,
  stateText,
  whyText,
  wishesText
} from './sentences';
import type { IGroup, IStatus } from '../core/status';
import { isWaiting, memoryOf } from '../core/status';
import type { IWording } from './short';
import { isolate, waitText, wordName } from './short';

/**
 * How a group stands: a line for each thing to know.
 *
 * @param background - Whether it makes a difference that it is in the background.
 */
export function detailsOf(
  group: IGroup,
  wording: IWording,
  now: number,
  background: boolean
): string {
  const { trans } = wording;
  const elapsed = now - group.at;
  const { resident, swapped } = memoryOf(group);
  const lines = [
    memoryText(resident, swapped, wording),
    sleepTitle(group, trans)
  ];
  if (isWaiting(group)) {
    lines.unshift(
      waitText(group, trans, now),
      whyText(group, wording, elapsed)
    );
    if (group.estimate) {
      lines.splice(
        1,
        0,
        trans.__(
          'Nine of ten such waits end in %1.',
          intervalText(group.estimate, elapsed)
        )
      );
    }
  } else {
    lines.unshift(stateText(group, trans, now));
  }
  if (group.state === 'held') {
    lines.push(
      trans.__('Idle lease: it can use the GPU again without waiting.')
    );
  }
  return [
    ...lines,
    group.class === 'background' && !background
      ? null
      : classText(group, trans),
    ...wishesText(group.wishes, wording)
  ]
    .filter(Boolean)
    .join('\n');
}

/** The group that another one waits for: who has the GPU, not who merely comes before it. */
export function holderOf(group: IGroup, status: IStatus): IGroup | null {
  const named = ({ reason }: IGroup, key: string): IGroup | null =>
    status.groups.find(({ id }) => id === reason?.params[key]) ?? null;
  const seen = new Set<IGroup>();
  let waiting: IGroup | null = group;
  while (waiting?.reason?.code === 'behind' && !seen.has(waiting)) {
    seen.add(waiting);
    waiting = named(waiting, 'ahead');
  }
  return waiting && named(waiting, 'holder');
}

/** What a group is called in a sentence. */
export function nameIn(
  names: ReadonlyMap<string, string>,
  group: IGroup
): string {
  return isolate(wordName(names.get(group.id) ?? group.name));
}
