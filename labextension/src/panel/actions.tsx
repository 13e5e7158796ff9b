// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  ellipsesIcon,
  launchIcon,
  MenuSvg,
  moveDownIcon,
  moveUpIcon,
  runIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Menu } from '@lumino/widgets';
import React from 'react';

import type { IEntry } from '../commands';
import { run } from '../commands';
import type { IGroup } from '../status';
import { CommandIds } from '../tokens';
import type { IWording } from '../words';

/** Open a menu below a button; the focus returns to the button. */
export function openMenu(
  commands: CommandRegistry,
  button: HTMLElement,
  entries: readonly (IEntry | null)[]
): void {
  const menu = new MenuSvg({ commands });
  for (const entry of entries) {
    if (entry === null) {
      menu.addItem({ type: 'separator' });
    } else if (commands.hasCommand(entry.command)) {
      menu.addItem(entry as Menu.IItemOptions);
    }
  }
  button.setAttribute('aria-expanded', 'true');
  menu.aboutToClose.connect(() => {
    button.setAttribute('aria-expanded', 'false');
    button.focus();
  });
  const { left, bottom } = button.getBoundingClientRect();
  menu.open(left, bottom);
}

/** Made once: what is the same element as before is not drawn again. */
const ICONS = {
  open: <launchIcon.react tag="span" />,
  unfreeze: <runIcon.react tag="span" />,
  release: <stopIcon.react tag="span" />,
  interactive: <moveUpIcon.react tag="span" />,
  background: <moveDownIcon.react tag="span" />,
  more: <ellipsesIcon.react tag="span" />
};

interface IActionsProps {
  group: IGroup;
  name: string;
  commands: CommandRegistry;
  wording: IWording;
}

/** What one can do about a group. */
export function Actions(props: IActionsProps): JSX.Element {
  const { group, name, commands, wording } = props;
  const { trans } = wording;
  const args = { group: group.id };
  const background = group.wishes.priority === 'background';
  const priority: IEntry = {
    command: CommandIds.setPriority,
    args: { ...args, priority: background ? 'interactive' : 'background' }
  };
  const open: IEntry = { command: CommandIds.goTo, args };
  const release: IEntry = { command: CommandIds.release, args };
  const freeze: IEntry = { command: CommandIds.toggleFrozen, args };
  // Shorter than in the palette, where no notebook's name stands beside them.
  const buttons: [string, IEntry, JSX.Element][] = [
    [trans.__('Open'), open, ICONS.open],
    group.wishes.frozen
      ? [trans.__('Unfreeze'), freeze, ICONS.unfreeze]
      : [trans.__('Release'), release, ICONS.release],
    background
      ? [trans.__('Make interactive'), priority, ICONS.interactive]
      : [trans.__('Make background'), priority, ICONS.background]
  ];
  const showMore = (event: React.MouseEvent<HTMLElement>): void =>
    openMenu(commands, event.currentTarget, [
      open,
      release,
      priority,
      null,
      { command: CommandIds.toggleKeep, args },
      { command: CommandIds.setLimit, args },
      null,
      freeze,
      { command: CommandIds.offload, args }
    ]);
  return (
    <div
      className="jp-GpuShare-actions"
      role="group"
      aria-label={trans.__('Actions for %1', name)}
    >
      {buttons.map(([label, entry, icon]) => (
        <ActionButton
          key={entry.command}
          label={label}
          trans={trans}
          commands={commands}
          entry={entry}
          icon={icon}
        />
      ))}
      <button
        type="button"
        className="jp-GpuShare-action"
        aria-haspopup="menu"
        aria-expanded="false"
        aria-label={trans.__('More actions')}
        title={trans.__('More actions')}
        onClick={showMore}
      >
        {ICONS.more}
      </button>
    </div>
  );
}

interface IActionButtonProps {
  label: string;
  trans: TranslationBundle;
  commands: CommandRegistry;
  entry: IEntry;
  icon: JSX.Element;
}

/** A command that makes sense now; one that does not is left to the menu, which shows it greyed. */
function ActionButton(props: IActionButtonProps): JSX.Element | null {
  const { label, trans, commands, entry, icon } = props;
  const { command, args } = entry;
  if (
    !commands.hasCommand(command) ||
    !commands.isVisible(command, args) ||
    !commands.isEnabled(command, args)
  ) {
    return null;
  }
  return (
    <button
      type="button"
      className="jp-GpuShare-action"
      title={trans.__('%1: %2', label, commands.caption(command, args))}
      onClick={() => run(commands, entry)}
    >
      {icon}
      <span className="jp-GpuShare-actionLabel">{label}</span>
    </button>
  );
}
