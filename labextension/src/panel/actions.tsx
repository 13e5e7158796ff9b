// SPDX-License-Identifier: BSD-3-Clause
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

import type { ITranslation } from '../core/translation';
import type { IEntry } from '../actions/table';
import { priorityEntries, run } from '../actions/table';
import type { IGroup } from '../core/status';
import { CommandIds } from '../tokens';
import type { IWording } from '../words/short';

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
  /** Whether its document is here. */
  canOpen: boolean;
  commands: CommandRegistry;
  wording: IWording;
}

/** What one can do about a group. */
export function Actions(props: IActionsProps): JSX.Element {
  const { group, name, canOpen, commands, wording } = props;
  const { frozen } = group.wishes;
  const background = group.class === 'background';
  const { release, change, freeze } = entriesOf(group.id, background);
  return (
    <Buttons
      id={group.id}
      name={name}
      commands={commands}
      trans={wording.trans}
      frozen={frozen}
      background={background}
      canOpen={canOpen}
      canStop={isPossible(commands, frozen ? freeze : release)}
      canChange={isPossible(commands, change)}
      releaseTitle={commands.caption(release.command, release.args)}
    />
  );
}

function entriesOf(
  group: string,
  background: boolean
): Record<'open' | 'release' | 'change' | 'freeze', IEntry> {
  const args = { group };
  return {
    open: { command: CommandIds.goTo, args },
    release: { command: CommandIds.release, args },
    change: {
      command: CommandIds.setPriority,
      args: { ...args, priority: background ? 'interactive' : 'background' }
    },
    freeze: { command: CommandIds.toggleFrozen, args }
  };
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

interface IButtonsProps {
  /** Of the group. */
  id: string;
  name: string;
  commands: CommandRegistry;
  trans: ITranslation;
  frozen: boolean;
  background: boolean;
  canOpen: boolean;
  canStop: boolean;
  canChange: boolean;
  /** It says how many others wait. */
  releaseTitle: string;
}

function ActionButtons(props: IButtonsProps): JSX.Element {
  const { id, name, commands, trans, frozen, background } = props;
  const { open, release, change, freeze } = entriesOf(id, background);
  // Shorter than in the palette, where no notebook's name stands beside them.
  const buttons: [boolean, string, IEntry, JSX.Element][] = [
    [props.canOpen, trans.__('Open'), open, ICONS.open],
    frozen
      ? [props.canStop, trans.__('Unfreeze'), freeze, ICONS.unfreeze]
      : [props.canStop, trans.__('Release'), release, ICONS.release],
    background
      ? [
          props.canChange,
          trans.__('Make interactive'),
          change,
          ICONS.interactive
        ]
      : [props.canChange, trans.__('Make background'), change, ICONS.background]
  ];
  const showMore = (event: React.MouseEvent<HTMLElement>): void => {
    const args = { group: id };
    openMenu(commands, event.currentTarget, [
      open,
      release,
      null,
      ...priorityEntries(id),
      null,
      { command: CommandIds.toggleKeep, args },
      { command: CommandIds.setMemory, args },
      null,
      freeze,
      { command: CommandIds.offload, args },
      { command: CommandIds.hibernate, args },
      { command: CommandIds.wake, args }
    ]);
  };
  return (
    <div
      className="jp-GpuShare-actions"
      role="group"
      aria-label={trans.__('Actions for %1', name)}
    >
      {buttons
        .filter(([possible]) => possible)
        .map(([, label, entry, icon]) => (
          <button
            key={entry.command}
            type="button"
            className="jp-GpuShare-action"
            title={trans.__(
              '%1: %2',
              label,
              entry === release
                ? props.releaseTitle
                : commands.caption(entry.command, entry.args)
            )}
            onClick={() => run(commands, entry)}
          >
            {icon}
            <span className="jp-GpuShare-actionLabel">{label}</span>
          </button>
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

/** Drawn again only when others make sense: most of what is new about a group changes none. */
const Buttons = React.memo(ActionButtons);
