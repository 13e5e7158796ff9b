// SPDX-License-Identifier: BSD-3-Clause
import {
  ellipsesIcon,
  launchIcon,
  moveDownIcon,
  moveUpIcon,
  runIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import type { ITranslation } from '../core/translation';
import { openMenu } from '../actions/menu';
import { isPossible, run } from '../actions/run';
import type { IEntry } from '../actions/table';
import type { IGroup } from '../core/status';
import { CommandIds } from '../tokens';
import { actionsText, moreText } from '../words/panel';
import type { IWording } from '../words/short';

/** Created once, because React does not render the same element again. */
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
  /** Whether its document can be opened on this page. */
  canOpen: boolean;
  commands: CommandRegistry;
  wording: IWording;
}

/** The buttons with the actions on a group. */
export function Actions(props: IActionsProps): JSX.Element {
  const { group, name, canOpen, commands, wording } = props;
  const { frozen } = group.preferences;
  const background = group.class !== 'interactive';
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

interface IButtonsProps {
  /** The id of the group. */
  id: string;
  name: string;
  commands: CommandRegistry;
  trans: ITranslation;
  frozen: boolean;
  background: boolean;
  canOpen: boolean;
  canStop: boolean;
  canChange: boolean;
  /** The tooltip of the button to release, which contains the number of waiting notebooks. */
  releaseTitle: string;
}

function ActionButtons(props: IButtonsProps): JSX.Element {
  const { id, name, commands, trans, frozen, background } = props;
  const { open, release, change, freeze } = entriesOf(id, background);
  const buttons: [boolean, IEntry, JSX.Element][] = [
    [props.canOpen, open, ICONS.open],
    frozen
      ? [props.canStop, freeze, ICONS.unfreeze]
      : [props.canStop, release, ICONS.release],
    [props.canChange, change, background ? ICONS.interactive : ICONS.background]
  ];
  return (
    <div
      className="jp-GpuShare-actions"
      role="group"
      aria-label={actionsText(name, trans)}
    >
      {buttons
        .filter(([possible]) => possible)
        .map(([, entry, icon]) => {
          const { command, args } = entry;
          const label = commands.label(command, { ...args, isShort: true });
          const caption =
            entry === release
              ? props.releaseTitle
              : commands.caption(command, args);
          return (
            <button
              key={command}
              type="button"
              className="jp-GpuShare-action"
              title={trans.__('%1: %2', label, caption)}
              onClick={() => run(commands, entry)}
            >
              {icon}
              <span className="jp-GpuShare-actionLabel">{label}</span>
            </button>
          );
        })}
      <MoreButton
        className="jp-GpuShare-action"
        group={id}
        commands={commands}
        trans={trans}
      />
    </div>
  );
}

interface IMoreButtonProps {
  className: string;
  /** The id of the group on which the menu acts. */
  group: string;
  commands: CommandRegistry;
  trans: ITranslation;
}

/** Opens the menu with all actions on a notebook. */
export function MoreButton(props: IMoreButtonProps): JSX.Element {
  const { className, group, commands, trans } = props;
  const more = moreText(trans);
  return (
    <button
      type="button"
      className={className}
      aria-haspopup="menu"
      aria-expanded="false"
      aria-label={more}
      title={more}
      onClick={({ currentTarget }) =>
        openMenu(commands, currentTarget, 'row', { group })
      }
    >
      {ICONS.more}
    </button>
  );
}

/** Rendered again only when the possible actions change, which is less often than the group does. */
const Buttons = React.memo(ActionButtons);
