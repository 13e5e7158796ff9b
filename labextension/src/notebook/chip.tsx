// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import { openMenu } from '../actions/menu';
import { run } from '../actions/run';
import { useExplanation } from '../components/explain';
import { markOf, Shape } from '../components/shape';
import type { IGroup, IUnshared } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { thisNotebook, unsharedText } from '../words/availability';
import { detailsOf } from '../words/details';
import type { IWording } from '../words/short';
import { gpuText, placeText, stateName, unsharedName } from '../words/short';

/** The content of the chip of one notebook; empty until its kernel has used the GPU. */
export interface IChipState {
  group: IGroup | null;
  unshared: IUnshared | null;
  /** Whether its low priority makes a difference now. */
  background: boolean;
  wording: IWording;
  /** The scheduler's clock. */
  now: number;
}

/** The services that the parts of a notebook use. */
export interface IPartOptions {
  model: Pick<IGpuShareModel, 'explain'>;
  commands: CommandRegistry;
}

/** The state of a notebook in its toolbar, with a menu of actions. */
export function Chip(
  props: IPartOptions & { state: IChipState }
): JSX.Element | null {
  const { group, unshared, background, wording, now } = props.state;
  const { commands } = props;
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
      text = trans.__('%1, low priority', text);
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
      onClick={({ currentTarget }) => {
        // Without a group, the only possible action is to open the panel.
        if (group) {
          openMenu(commands, currentTarget, 'chip', { group: group.id });
        } else {
          run(commands, { command: CommandIds.openPanel });
        }
      }}
    >
      <Shape mark={mark} />
      <span>{text}</span>
    </button>
  );
}
