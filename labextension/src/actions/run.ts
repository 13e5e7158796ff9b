// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';

import type { IEntry } from './table';

/** Run a command. It may fail, because users can disable the plugin that adds it. */
export function run(
  commands: CommandRegistry,
  { command, args }: IEntry
): void {
  commands.execute(command, args).catch(console.error);
}

/** Whether a command is possible now. Only menus show commands that are not possible. */
export function isPossible(
  commands: CommandRegistry,
  { command, args }: IEntry
): boolean {
  return (
    commands.hasCommand(command) &&
    commands.isVisible(command, args) &&
    commands.isEnabled(command, args)
  );
}
