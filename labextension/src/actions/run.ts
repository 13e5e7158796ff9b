// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';

import type { IEntry } from './table';

/** Run a command, and keep its failure from the page: people may have disabled what adds it. */
export function run(
  commands: CommandRegistry,
  { command, args }: IEntry
): void {
  commands.execute(command, args).catch(console.error);
}

/** Whether a command makes sense now; one that does not is left to the menu, which shows it greyed. */
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
