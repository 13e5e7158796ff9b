// SPDX-License-Identifier: BSD-3-Clause
import { CommandRegistry } from '@lumino/commands';

import type { Args, IAbout } from '../actions/table';
import { ACTIONS, labelOf } from '../actions/table';
import { nameIn } from '../words/mentions';
import type { FakeModel } from './fixtures';
import { trans } from './fixtures';

/** Commands with the labels of the actions, which note what was asked of them. */
export class FakeCommands extends CommandRegistry {
  constructor(model: FakeModel) {
    super();
    for (const row of ACTIONS) {
      const about = (args: Args): IAbout => {
        const group = model.groupOf(args['group'] as string | undefined);
        return {
          args,
          group,
          name: group ? nameIn(new Map(), group) : '',
          status: model.status,
          hasDocument: true,
          trans
        };
      };
      this._add(
        row.command,
        args => labelOf(row, about(args)),
        args =>
          (row.isEnabled?.(about(args)) ?? true) &&
          (row.isVisible?.(about(args)) ?? true)
      );
    }
    this._add('settingeditor:open', 'Settings Editor');
  }

  readonly disabled = new Set<string>();
  readonly executed: [string, unknown][] = [];
  /** Whether actions are possible only where they make sense. */
  isStrict = false;

  private _add(
    id: string,
    label: CommandRegistry.ICommandOptions['label'],
    makesSense: (args: Args) => boolean = () => true
  ): void {
    this.addCommand(id, {
      label,
      caption: `What ${id} does`,
      isEnabled: args =>
        !this.disabled.has(id) && (!this.isStrict || makesSense(args)),
      execute: args => {
        this.executed.push([id, args]);
      }
    });
  }
}
