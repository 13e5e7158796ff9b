// SPDX-License-Identifier: BSD-3-Clause
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import { openMenu } from '../actions/menu';
import { run } from '../actions/run';
import { useExplanation } from '../components/explain';
import { markOf, Shape } from '../components/shape';
import type { IGroup, IUnshared } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { unsharedText } from '../words/availability';
import { detailsOf } from '../words/details';
import type { IWording } from '../words/short';
import {
  gpuText,
  placeText,
  stateName,
  thisNotebook,
  unsharedName
} from '../words/short';

/** What the chip of one notebook shows: nothing, while its kernel has not used the GPU. */
export interface IChipState {
  group: IGroup | null;
  unshared: IUnshared | null;
  /** Whether it makes a difference that it is in the background. */
  background: boolean;
  wording: IWording;
  /** The scheduler's clock. */
  now: number;
}

/** What the parts of a notebook need to ask and to act. */
export interface IPartOptions {
  model: Pick<IGpuShareModel, 'explain'>;
  commands: CommandRegistry;
}

function Chip(props: {
  state: IChipState;
  model: IPartOptions['model'];
  open: (button: HTMLElement) => void;
}): JSX.Element | null {
  const { group, unshared, background, wording, now } = props.state;
  const { trans } = wording;
  const [explanation, pointing] = useExplanation(props.model, group, wording);
  if (!group && !unshared) {
    return null;
  }
  const mark = group ? markOf(group) : 'unshared';
  let text = unsharedName(trans);
  let title = unshared
    ? unsharedText(thisNotebook(trans), unshared, trans).text
    : '';
  if (group) {
    title = detailsOf(group, wording, now, background);
    if (mark === 'frozen') {
      text = trans.__('GPU: frozen');
    } else if (group.state === 'waiting') {
      text = trans.__('GPU: waiting, %1', placeText(group.position, trans));
    } else {
      text = gpuText(stateName(group, trans), trans);
    }
    if (background && mark !== 'frozen') {
      text = trans.__('%1, background', text);
    }
  }
  return (
    <button
      type="button"
      className="jp-GpuShare-chip"
      data-mark={mark}
      title={[title, explanation].filter(Boolean).join('\n')}
      data-explanation={explanation || undefined}
      aria-haspopup={group ? 'menu' : undefined}
      data-group={group?.id}
      {...pointing}
      onClick={event => props.open(event.currentTarget)}
    >
      <Shape mark={mark} />
      <span>{text}</span>
    </button>
  );
}

/** A notebook's own state, in its toolbar. */
export class ChipWidget extends ReactWidget {
  constructor({ model, commands }: IPartOptions, state: IChipState) {
    super();
    this._model = model;
    this._commands = commands;
    this._state = state;
    this.addClass('jp-GpuShare-chipItem');
  }

  set state(state: IChipState) {
    this._state = state;
    this.update();
  }

  protected render(): JSX.Element {
    return (
      <Chip
        state={this._state}
        model={this._model}
        open={button => this._open(button)}
      />
    );
  }

  /** The actions of this notebook; without a group there is none but to look at the panel. */
  private _open(button: HTMLElement): void {
    const { group } = this._state;
    if (!group) {
      run(this._commands, { command: CommandIds.openPanel });
      return;
    }
    openMenu(this._commands, button, 'chip', { group: group.id });
  }

  private _commands: CommandRegistry;
  private _model: IPartOptions['model'];
  private _state: IChipState;
}
