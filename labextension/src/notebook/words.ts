// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IDocuments } from '../documents';
import type { IGroup, IStatus } from '../status';
import { memoryOf } from '../status';
import type { IGpuShareModel } from '../tokens';
import type { IWording, Names } from '../words';
import {
  classText,
  estimateText,
  intervalText,
  memoryText,
  placeText,
  reasonText,
  stateText,
  wishesText,
  wordName
} from '../words';

/** How things are worded now; names are looked for only if something is named. */
export function wordingOf(
  status: IStatus,
  model: IGpuShareModel,
  documents: IDocuments,
  trans: TranslationBundle
): IWording {
  let names: Names | null = null;
  return {
    trans,
    units: model.preferences.units,
    get names() {
      return (names ??= documents.names(status));
    }
  };
}

/** `2nd, about 4 s`. */
export function waitText(
  group: IGroup,
  trans: TranslationBundle,
  now: number
): string {
  const place = placeText(group.position, trans);
  return group.estimate
    ? trans.__(
        '%1, %2',
        place,
        estimateText(group.estimate, trans, now - group.at)
      )
    : place;
}

/** How a group stands: a line for each thing to know. */
export function detailsOf(
  group: IGroup,
  wording: IWording,
  now: number
): string {
  const { trans } = wording;
  const elapsed = now - group.at;
  const { resident, swapped } = memoryOf(group);
  const lines = [memoryText(resident, swapped, wording)];
  if (group.state === 'waiting') {
    lines.unshift(
      waitText(group, trans, now),
      reasonText(group.reason, wording, elapsed)
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
  return [
    ...lines,
    classText(group, trans),
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
  return wordName(names.get(group.id) ?? group.name);
}
