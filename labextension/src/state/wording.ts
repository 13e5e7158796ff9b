// SPDX-License-Identifier: BSD-3-Clause

import type { ITranslation } from '../core/translation';
import type { IStatus } from '../core/status';
import type { IDocuments, IGpuShareModel } from '../tokens';
import type { Names } from '../words/names';
import type { IWording } from '../words/short';

/** The options for texts. Names are looked up only when a text needs them. */
export function wordingOf(
  status: IStatus,
  model: IGpuShareModel,
  documents: IDocuments,
  trans: ITranslation
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
