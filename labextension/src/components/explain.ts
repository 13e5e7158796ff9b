// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGroup } from '../core/status';
import { isRunning } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import type { IWording } from '../words/short';

/** The event handlers that notice that an element has the pointer or the focus. */
type Pointing = Pick<
  React.HTMLAttributes<HTMLElement>,
  'onMouseEnter' | 'onMouseLeave' | 'onFocus' | 'onBlur'
>;

/** Whether the scheduler can explain the state: why a group waits, or what limits a running group. */
export function canExplain(group: IGroup): boolean {
  return (
    group.state === 'waiting' ||
    (group.class !== 'interactive' && isRunning(group))
  );
}

/**
 * Explain which rule put other groups ahead of a group, or what limits it. The server is asked
 * while the element has the pointer or the focus.
 *
 * @returns The explanation, '' while there is none; and the event handlers for the element.
 */
export function useExplanation(
  model: Pick<IGpuShareModel, 'explain'>,
  group: IGroup | null,
  wording: IWording | null
): [text: string, pointing: Pointing] {
  const [pointed, point] = React.useState(false);
  const [text, setText] = React.useState('');
  const wordingNow = React.useRef(wording);
  wordingNow.current = wording;
  // Ask again when the position in the queue or the reason changes.
  const { id, position, reason } = group ?? {};
  const place =
    pointed && group && canExplain(group)
      ? JSON.stringify([
          id,
          position,
          reason?.code,
          reason?.params['holder'] ?? reason?.params['ahead']
        ])
      : '';
  React.useEffect(() => {
    let current = place !== '';
    if (!current) {
      setText('');
      return;
    }
    Promise.all([
      model.explain(id ?? ''),
      import(/* webpackChunkName: "explanation" */ '../words/explanation')
    ])
      .then(([answer, { explanationText }]) => {
        if (current && wordingNow.current) {
          setText(explanationText(answer, wordingNow.current));
        }
      })
      // The reason is shown without the explanation.
      .catch(console.error);
    return () => {
      current = false;
    };
    // `place` contains the id.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [model, place]);
  const pointing = React.useMemo<Pointing>(() => {
    const begin = (): void => point(true);
    const end = (): void => point(false);
    return {
      onMouseEnter: begin,
      onMouseLeave: end,
      onFocus: begin,
      onBlur: end
    };
  }, []);
  return [text, pointing];
}
