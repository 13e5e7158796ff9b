// SPDX-License-Identifier: BSD-3-Clause
import { caretDownEmptyIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import { openMenu } from '../actions/menu';
import type { IHibernation, ISettings } from '../core/status';
import { CommandIds } from '../tokens';
import { idlenessText, modeText } from '../words/settings';
import type { IWording } from '../words/short';

interface IModeProps {
  settings: ISettings;
  hibernation: IHibernation | null;
  /** Whether the user has the permission to change it. */
  may: boolean;
  commands: CommandRegistry;
  wording: IWording;
}

function ModeChoice(props: IModeProps): JSX.Element {
  const { settings, hibernation, may, commands, wording } = props;
  const { trans } = wording;
  const text = modeText(settings, trans);
  const title = [
    settings.anti_thrash === 'auto'
      ? trans.__(
          'Notebooks run side by side if their memory fits, and take turns if it does not.'
        )
      : settings.anti_thrash === 'on'
        ? trans.__('Only one notebook at a time uses a GPU.')
        : trans.__(
            'Notebooks with managed memory run side by side, even if their memory does not fit.'
          ),
    trans.__('Policy: %1', settings.policy),
    idlenessText(settings, hibernation, trans)
  ]
    .filter(line => line)
    .join('\n');
  if (
    !may ||
    !commands.hasCommand(CommandIds.setAntiThrash) ||
    !commands.hasCommand(CommandIds.setQuantum)
  ) {
    return (
      <span className="jp-GpuShare-mode" title={title}>
        {text}
      </span>
    );
  }
  return (
    <button
      type="button"
      className="jp-GpuShare-mode"
      aria-haspopup="menu"
      aria-expanded="false"
      aria-label={trans.__('How notebooks share the GPU: %1', text)}
      title={title}
      onClick={event => openMenu(commands, event.currentTarget, 'mode')}
    >
      <span>{text}</span>
      <caretDownEmptyIcon.react tag="span" />
    </button>
  );
}

/** How notebooks share the GPU, with a menu to change it for users with the permission. */
export const Mode = React.memo(ModeChoice);
