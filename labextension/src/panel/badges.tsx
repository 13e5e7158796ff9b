// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGroup, IGroupPreferences } from '../core/status';
import type { IWording } from '../words/short';
import { classText, preferencesText, sleepTitle } from '../words/states';

interface IBadgesProps {
  group: IGroup;
  /** Whether its low priority makes a difference now. */
  background: boolean;
  /** The settings that the text next to the badges does not mention. */
  preferences: IGroupPreferences;
  wording: IWording;
}

/** Short labels for the settings of a notebook, and for its hibernation. */
export function Badges(props: IBadgesProps): JSX.Element {
  const { group, background, preferences, wording } = props;
  const { trans } = wording;
  return (
    <>
      <Sleep group={group} wording={wording} />
      {background && (
        <Badge
          text={trans.__('low priority')}
          title={classText(group, trans) ?? undefined}
        />
      )}
      {group.class === 'agent' && (
        <Badge
          text={trans.__('agent')}
          title={classText(group, trans) ?? undefined}
        />
      )}
      {preferencesText(preferences, wording).map(text => (
        <Badge key={text} text={text} />
      ))}
    </>
  );
}

function Badge(props: { text: string; title?: string }): JSX.Element {
  return (
    <>
      {' '}
      <span className="jp-GpuShare-preference" title={props.title}>
        {props.text}
      </span>
    </>
  );
}

/** Whether it is hibernating or about to, or why that was refused. */
function Sleep(
  props: Pick<IBadgesProps, 'group' | 'wording'>
): JSX.Element | null {
  const { group, wording } = props;
  const { trans } = wording;
  const title = sleepTitle(group, trans);
  const hibernating = trans.__('Hibernating…');
  const text = {
    ordered: trans.__('hibernates when idle'),
    parking: hibernating,
    hibernating,
    // The text next to the badge says so.
    hibernated: '',
    waking: '',
    // The tooltip has the reason.
    refused: title && trans.__('not hibernated')
  }[group.hibernation?.state ?? 'refused'];
  if (!group.hibernation || !text) {
    return null;
  }
  const explains = ['refused', 'ordered'].includes(group.hibernation.state);
  return (
    <>
      {' '}
      <span
        className="jp-GpuShare-preference jp-GpuShare-sleep"
        title={title || undefined}
        tabIndex={explains ? 0 : undefined}
        data-explanation={explains ? title : undefined}
      >
        {text}
      </span>
    </>
  );
}
