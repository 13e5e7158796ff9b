// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGroup } from '../core/status';

/** The states that have marks of their own. */
export type Mark =
  | 'running'
  | 'waiting'
  | 'restoring'
  | 'idle'
  | 'hibernated'
  | 'frozen'
  | 'unshared';

export function markOf(group: IGroup): Mark {
  if (group.preferences.frozen) {
    return 'frozen';
  }
  switch (group.state) {
    case 'waiting':
    case 'restoring':
    case 'hibernated':
      return group.state;
    case 'waking':
      return 'waiting';
    case 'prefetching':
      return 'restoring';
    case 'running':
    case 'finishing':
      return 'running';
    default:
      return 'idle';
  }
}

const PATHS: Record<Mark, string> = {
  running: 'M3 1.5v9L10.5 6z',
  waiting: 'M2.5 1h7v2L7 6l2.5 3v2h-7V9L5 6 2.5 3z',
  restoring: 'M6 .8l4.2 4.7H7.5V11h-3V5.5H1.8z',
  idle: 'M6 1.2a4.8 4.8 0 1 0 0 9.6 4.8 4.8 0 0 0 0-9.6zm0 1.6a3.2 3.2 0 1 1 0 6.4 3.2 3.2 0 0 1 0-6.4z',
  hibernated: 'M7.2 1A5 5 0 1 0 11 8.3 4.4 4.4 0 0 1 7.2 1z',
  frozen: 'M2.5 1.5h2.4v9H2.5zm4.6 0h2.4v9H7.1z',
  unshared:
    'M6 1.2a4.8 4.8 0 1 0 0 9.6 4.8 4.8 0 0 0 0-9.6zM2.8 6A3.2 3.2 0 0 1 7.7 3.2L3.2 7.7A3.2 3.2 0 0 1 2.8 6zm1.5 2.8l4.5-4.5a3.2 3.2 0 0 1-4.5 4.5z'
};

/** The mark as a shape, which can be recognized without its colour. */
export function Shape({ mark }: { mark: Mark }): JSX.Element {
  return (
    <svg
      className="jp-GpuShare-shape"
      data-mark={mark}
      viewBox="0 0 12 12"
      width="12"
      height="12"
      aria-hidden="true"
    >
      <path d={PATHS[mark]} fill="currentColor" />
    </svg>
  );
}
