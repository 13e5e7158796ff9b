// SPDX-License-Identifier: BSD-3-Clause
import { settingsIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import type { ITranslation } from '../core/translation';
import { run } from '../actions/run';
import type { ICode } from '../core/status';
import { linkText, titleText } from '../words/short';

const SETTINGS_COMMAND = 'settingeditor:open';

interface IHeaderProps {
  availability: ICode | null;
  commands: CommandRegistry;
  trans: ITranslation;
}

function Head(props: IHeaderProps): JSX.Element {
  const { availability, commands, trans } = props;
  const link = availability && linkText(availability, trans);
  const label = trans.__('GPU sharing settings');
  return (
    <div className="jp-GpuShare-title">
      <h2>{titleText(trans)}</h2>
      {link && (
        <span className="jp-GpuShare-link" data-state={link.state}>
          {link.text}
        </span>
      )}
      {commands.hasCommand(SETTINGS_COMMAND) && (
        <button
          type="button"
          className="jp-GpuShare-icon"
          title={label}
          aria-label={label}
          onClick={() =>
            run(commands, {
              command: SETTINGS_COMMAND,
              args: { query: 'GPU sharing' }
            })
          }
        >
          <settingsIcon.react tag="span" />
        </button>
      )}
    </div>
  );
}

export const Header = React.memo(Head);
