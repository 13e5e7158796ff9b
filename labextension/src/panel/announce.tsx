// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { ITranslation } from '../core/translation';
import type { IGroup } from '../core/status';
import { announce } from '../words/announcements';

interface IAnnouncementProps {
  group: IGroup | null;
  nameOf: (id: string) => string;
  /** How many times the active document has changed. */
  fronts: number;
  trans: ITranslation;
}

/**
 * Announces changes of the active document's state to screen readers.
 *
 * The strip of a cell makes its own announcement, which should not be repeated.
 */
export function Announcement(props: IAnnouncementProps): JSX.Element {
  const { nameOf, fronts, trans } = props;
  const [announced, setAnnounced] = React.useState('');
  const before = React.useRef<number | null>(null);
  const inCell =
    props.group !== null &&
    props.group.cell !== null &&
    props.group.sessions.some(({ type }) => type === 'notebook');
  const group = inCell ? null : props.group;
  const text = group ? announce(group, nameOf(group.id), trans) : '';
  // A new position in the queue or a new name is not a change of state.
  const state = group ? announce({ ...group, position: null }, '', trans) : '';
  React.useEffect(() => {
    if (before.current === fronts) {
      setAnnounced(text);
    }
    // The end of a cell is not announced.
    before.current = inCell ? null : fronts;
    // The text is that of the moment of the change.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [fronts, state, inCell]);
  return (
    <div className="jp-GpuShare-announcement" role="status">
      {announced}
    </div>
  );
}
