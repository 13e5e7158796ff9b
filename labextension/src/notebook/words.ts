// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IDocuments } from '../documents';
import type { IGroup, IStatus } from '../status';
import type { IGpuShareModel } from '../tokens';
import type { IWording, Names } from '../words';
import { estimateText, placeText, wordName } from '../words';

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
