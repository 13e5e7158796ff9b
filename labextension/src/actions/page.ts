// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';

import type { ITranslation } from '../core/translation';
import { gpuShareIcon } from '../icon';
import type { IGpuShareModel } from '../tokens';
import type { Args, IAbout } from './table';
import { actionOf, labelOf } from './table';

export interface IPageCommandOptions {
  commands: CommandRegistry;
  model: IGpuShareModel;
  trans: ITranslation;
  /** A command that shows a part of the page. */
  command: string;
  execute: (args: Args) => void;
}

/** Add a command that shows a part of this extension. The plugin of that part calls this. */
export function addPageCommand(options: IPageCommandOptions): IDisposable {
  const { commands, model, trans, execute } = options;
  const row = actionOf(options.command);
  const about = (args: Args): IAbout => ({
    args,
    group: null,
    name: '',
    status: model.status,
    hasDocument: false,
    trans
  });
  return commands.addCommand(row.command, {
    label: args => labelOf(row, about(args)),
    caption: args => row.caption(about(args)),
    icon: gpuShareIcon,
    execute,
    describedBy: {
      args: { type: 'object', properties: { ...row.parameters?.(trans) } }
    }
  });
}
