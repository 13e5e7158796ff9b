// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';

import type { ISession } from '../core/status';
import type { ITranslation } from '../core/translation';
import type { IDocuments, IGpuShareModel } from '../tokens';

/** The services that the commands use. */
export interface ICommandsOptions {
  commands: CommandRegistry;
  model: IGpuShareModel;
  documents: IDocuments;
  trans: ITranslation;
  /** Go to a document of this server. */
  open: (document: ISession) => Promise<void>;
  /** The group on which a context menu was opened. */
  groupAt?: () => string | null;
}

/** For how long a failure is shown, in milliseconds. */
export const SHOWN = 10_000;
