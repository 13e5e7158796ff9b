// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';

import { isPossible } from '../actions/run';
import type { IEntry } from '../actions/table';
import { isRunning, isWaiting } from '../core/status';
import type { IGroup } from '../core/status';
import { CommandIds } from '../tokens';

/** Number of actions on the card; its menu has all of them. */
const MOST = 2;

/** JupyterLab's command to restart the kernel of the active document. */
export const RESTART = 'kernelmenu:restart';

/**
 * Choose the most useful actions for the active notebook in its state.
 *
 * @param holder - The notebook that it is waiting for.
 */
export function choicesOf(
  group: IGroup,
  holder: IGroup | null,
  commands: CommandRegistry
): IEntry[] {
  return entriesOf(group, holder)
    .filter(entry => isPossible(commands, entry))
    .slice(0, MOST);
}

function entriesOf(group: IGroup, holder: IGroup | null): IEntry[] {
  if (group.preferences.on_hold) {
    return [];
  }
  const args = { group: group.id };
  const entry = (command: string): IEntry => ({ command, args });
  if (group.preferences.frozen) {
    return [entry(CommandIds.toggleFrozen)];
  }
  const priority = {
    command: CommandIds.setPriority,
    args: {
      ...args,
      priority: group.class === 'interactive' ? 'background' : 'interactive'
    }
  };
  if (isWaiting(group)) {
    return [
      ...(holder
        ? [{ command: CommandIds.goTo, args: { group: holder.id } }]
        : []),
      priority
    ];
  }
  if (isRunning(group) || group.state === 'idle_lease') {
    return [entry(CommandIds.release), priority];
  }
  return [
    entry(CommandIds.wake),
    entry(CommandIds.ready),
    entry(CommandIds.evict),
    entry(CommandIds.hibernate)
  ];
}
