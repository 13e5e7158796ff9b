// SPDX-License-Identifier: BSD-3-Clause
import { CommandRegistry } from '@lumino/commands';

import { ACTIONS, labelOf } from '../actions/table';
import type { FakeModel } from './fixtures';
import { trans } from './fixtures';

/** Commands with the labels of the actions, which note what was asked of them. */
export class FakeCommands extends CommandRegistry {
  constructor(model: FakeModel) {
    super();
    for (const row of ACTIONS) {
      this._add(row.command, args =>
        labelOf(row, {
          args,
          group: model.groupOf(args['group'] as string | undefined),
          status: model.status,
          hasDocument: true,
          trans
        })
      );
    }
    this._add('settingeditor:open', 'Settings Editor');
  }

  readonly disabled = new Set<string>();
  readonly executed: [string, unknown][] = [];

  private _add(
    id: string,
    label: CommandRegistry.ICommandOptions['label']
  ): void {
    this.addCommand(id, {
      label,
      caption: `What ${id} does`,
      isEnabled: () => !this.disabled.has(id),
      execute: args => {
        this.executed.push([id, args]);
      }
    });
  }
}
