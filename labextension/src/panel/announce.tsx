// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { ITranslation } from '../core/translation';
import type { IGroup } from '../core/status';
import { announce } from '../words/announcements';

interface IAnnouncementProps {
  group: IGroup | null;
  nameOf: (id: string) => string;
  /** How often another document came to the front. */
  fronts: number;
  trans: ITranslation;
}

/**
 * Says aloud when the document in front goes from one state to another, and nothing else.
 *
 * A cell of a notebook says it itself, in its strip: nobody should hear it twice.
 */
export function Announcement(props: IAnnouncementProps): JSX.Element {
  const { nameOf, fronts, trans } = props;
  const [said, say] = React.useState('');
  const before = React.useRef<number | null>(null);
  const inCell =
    props.group !== null &&
    props.group.cell !== null &&
    props.group.sessions.some(({ type }) => type === 'notebook');
  const group = inCell ? null : props.group;
  const text = group ? announce(group, nameOf(group.id), trans) : '';
  // A queue that moves on, or a new name, is no change of state.
  const state = group ? announce({ ...group, position: null }, '', trans) : '';
  React.useEffect(() => {
    if (before.current === fronts) {
      say(text);
    }
    // That a cell is over is no news either.
    before.current = inCell ? null : fronts;
    // The words are those of the moment of the change.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [fronts, state, inCell]);
  return (
    <div className="jp-GpuShare-announcement" role="status">
      {said}
    </div>
  );
}
