// SPDX-License-Identifier: BSD-3-Clause
import { MenuSvg } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';

import type { Place } from './table';
import { entriesOf } from './table';

/**
 * Open the menu of a place below a button; the focus returns to the button.
 *
 * @param args - Arguments that all entries have.
 */
export function openMenu(
  commands: CommandRegistry,
  button: HTMLElement,
  place: Place,
  args: ReadonlyJSONObject = {}
): void {
  const menu = new MenuSvg({ commands });
  for (const entry of entriesOf(place, args)) {
    if (entry === null) {
      menu.addItem({ type: 'separator' });
    } else if (commands.hasCommand(entry.command)) {
      menu.addItem(entry);
    }
  }
  button.setAttribute('aria-expanded', 'true');
  menu.aboutToClose.connect(() => {
    button.setAttribute('aria-expanded', 'false');
    button.focus();
    // It closes before it runs the chosen command.
    queueMicrotask(() => menu.dispose());
  });
  const { left, bottom } = button.getBoundingClientRect();
  menu.open(left, bottom);
}
